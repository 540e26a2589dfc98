"""The few fields of Envoy's messages that the observer reads, wire-compatible; protobuf skips all others.

The full set from PyPI (xds-protos) overwrites files of opentelemetry-proto, and MLflow no longer starts.
Source: envoy/service/accesslog/v3/als.proto, envoy/data/accesslog/v3/accesslog.proto,
envoy/service/ext_proc/v3/external_processor.proto, envoy/config/core/v3/base.proto.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

PACKAGE = "trimtab.envoy"
TEXT, BYTES, FLAG, COUNT = "string", "bytes", "bool", "uint32"
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
        "duration": (23, SPAN),
        "upstream_request_attempt_count": (24, COUNT),
    },
    "HTTPRequestProperties": {"path": (5, TEXT), "request_id": (9, TEXT), "request_headers": (13, "map")},
    "HTTPResponseProperties": {
        "response_code": (1, NUMBER),
        "response_headers": (4, "map"),
        "response_trailers": (5, "map"),
    },
    "ProcessingRequest": {
        "request_headers": (2, "HttpHeaders"),
        "response_headers": (3, "HttpHeaders"),
        "request_body": (4, "HttpBody"),
        "response_body": (5, "HttpBody"),
        "response_trailers": (7, "HttpTrailers"),
    },
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, FLAG)},
    "HttpBody": {"body": (1, BYTES), "end_of_stream": (2, FLAG)},
    "HttpTrailers": {"trailers": (1, "HeaderMap")},
    "HeaderMap": {"headers": (1, "*HeaderValue")},
    "HeaderValue": {"key": (1, TEXT), "value": (2, TEXT), "raw_value": (3, BYTES)},
}


def access_log_message(body: bytes) -> Any:
    """A StreamAccessLogsMessage. `google.protobuf.message.DecodeError` when it is none."""
    return message_class("StreamAccessLogsMessage").FromString(body)


def processing_request(body: bytes) -> Any:
    """A ProcessingRequest. `google.protobuf.message.DecodeError` when it is none."""
    return message_class("ProcessingRequest").FromString(body)


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
        if name == "ProcessingRequest":
            message.oneof_decl.add(name="request")
        for field, (number, type_) in fields.items():
            _add(message, field, number, type_, f".{PACKAGE}.{name}", in_oneof=name == "ProcessingRequest")
    pool = descriptor_pool.DescriptorPool()
    for module in known:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


def _add(message: Any, name: str, number: int, type_: str, scope: str, *, in_oneof: bool) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
    if in_oneof:
        field.oneof_index = 0
    scalars = {TEXT: Field.TYPE_STRING, BYTES: Field.TYPE_BYTES, FLAG: Field.TYPE_BOOL, COUNT: Field.TYPE_UINT32}
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
