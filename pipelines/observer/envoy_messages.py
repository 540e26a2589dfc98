"""The few fields of Envoy's messages that the observer reads, wire-compatible; protobuf skips all others.

The full set from PyPI (xds-protos) overwrites files of opentelemetry-proto, and MLflow no longer starts.
Source: envoy/service/accesslog/v3/als.proto, envoy/data/accesslog/v3/accesslog.proto, envoy/config/core/v3/base.proto,
google/protobuf/struct.proto. A map is the repeated pair that it is on the wire, and text not worth a check is bytes.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

PACKAGE = "trimtab.envoy"
TEXT, BYTES, COUNT, REAL = "string", "bytes", "uint32", "double"
TIME, SPAN, NUMBER = "google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.UInt32Value"

# message -> field -> (number, type); "*" repeats, "map" is text to text.
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "StreamAccessLogsMessage": {"http_logs": (2, "HTTPAccessLogEntries")},
    "HTTPAccessLogEntries": {"log_entry": (1, "*HTTPAccessLogEntry")},
    "HTTPAccessLogEntry": {
        "common_properties": (1, "AccessLogCommon"),
        "request": (3, "HTTPRequestProperties"),
        "response": (4, "HTTPResponseProperties"),
    },
    "AccessLogCommon": {
        "start_time": (5, TIME),
        "time_to_last_downstream_tx_byte": (12, SPAN),
        "upstream_cluster": (15, TEXT),
        "metadata": (17, "Metadata"),
        "duration": (23, SPAN),
        "upstream_request_attempt_count": (24, COUNT),
    },
    "HTTPRequestProperties": {"path": (5, TEXT), "request_id": (9, TEXT), "request_headers": (13, "map")},
    "HTTPResponseProperties": {
        "response_code": (1, NUMBER),
        "response_headers": (4, "map"),
        "response_trailers": (5, "map"),
    },
    "Metadata": {"filter_metadata": (1, "*Place")},
    "Place": {"key": (1, TEXT), "value": (2, "Struct")},
    "Struct": {"fields": (1, "*Field")},
    "Field": {"key": (1, TEXT), "value": (2, "Value")},
    "Value": {"number_value": (2, REAL), "string_value": (3, BYTES)},
}


def access_log_message(body: bytes) -> Any:
    """A StreamAccessLogsMessage. `google.protobuf.message.DecodeError` when it is none."""
    return message_class("StreamAccessLogsMessage").FromString(body)


def message_class(name: str) -> Any:
    """The protobuf class of one of MESSAGES."""
    return _classes()[name]


@cache
def _classes() -> Mapping[str, Any]:
    from google.protobuf import (
        descriptor_pb2,
        descriptor_pool,
        duration_pb2,
        message_factory,
        timestamp_pb2,
        wrappers_pb2,
    )

    known = (timestamp_pb2, duration_pb2, wrappers_pb2)
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in known)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, type_) in fields.items():
            _add(message, field, number, type_, f".{PACKAGE}.{name}")
    pool = descriptor_pool.DescriptorPool()
    for module in known:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


def _add(message: Any, name: str, number: int, type_: str, scope: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
    scalars = {TEXT: Field.TYPE_STRING, BYTES: Field.TYPE_BYTES, COUNT: Field.TYPE_UINT32, REAL: Field.TYPE_DOUBLE}
    if type_ in scalars:
        field.type = scalars[type_]
        return
    field.type = Field.TYPE_MESSAGE
    if type_ == "map":
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for key, place in (("key", 1), ("value", 2)):
            entry.field.add(name=key, number=place, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
        field.label, field.type_name = Field.LABEL_REPEATED, f"{scope}.{entry.name}"
        return
    if type_.startswith("*"):
        field.label = Field.LABEL_REPEATED
    plain = type_.lstrip("*")
    field.type_name = f".{plain}" if plain.startswith("google.") else f".{PACKAGE}.{plain}"
