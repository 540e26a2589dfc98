"""The two gRPC services that Envoy calls. They only take bytes in: decoding on the loop would cost copies."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from pipelines.observer.envoy_messages import processing_request
from pipelines.observer.inbox import Copy, Inbox

ACCESS_SERVICE = "envoy.service.accesslog.v3.AccessLogService"
COPIES_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]


async def serve(inbox: Inbox, access_port: int, copies_port: int, clock: Callable[[], float] = time.time) -> list[Any]:
    """Start both servers on loopback. The caller keeps them: unreferenced, a grpc.aio server closes in silence."""
    import grpc

    async def access(messages: AsyncIterator[bytes], context: Any) -> bytes:
        async for message in messages:
            if inbox.admits(len(message)):
                inbox.access.append(message)
            else:
                inbox.drop([])
        return b""

    async def copies(messages: AsyncIterator[bytes], context: Any) -> None:
        await _copy(inbox, messages, clock)

    handlers = {
        access_port: (ACCESS_SERVICE, {"StreamAccessLogs": grpc.stream_unary_rpc_method_handler(access)}),
        copies_port: (COPIES_SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(copies)}),
    }
    servers = []
    for port, (service, methods) in handlers.items():
        server = grpc.aio.server(options=_ANY_SIZE)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
    return servers


async def _copy(inbox: Inbox, messages: AsyncIterator[bytes], clock: Callable[[], float]) -> None:
    copy, whole = Copy(clock()), True
    try:
        async for frame in messages:
            whole = whole and inbox.admits(len(frame))
            if whole:
                copy.frames.append(frame)
                copy.last_at = clock()
            if is_last(frame):
                break
    finally:
        # A client that left before its answer: Envoy cancels the stream.
        if whole:
            inbox.copies.append(copy)
        else:
            inbox.drop(copy.frames)


_RESPONSE_HEADERS, _RESPONSE_BODY, _RESPONSE_TRAILERS = 0x1A, 0x2A, 0x3A  # the tags of fields 3, 5 and 7


def is_last(frame: bytes) -> bool:
    """Whether nothing follows this message of a copy: its answer ended with it."""
    if frame[:1] == bytes([_RESPONSE_TRAILERS]):
        return True
    if frame[:1] not in (bytes([_RESPONSE_HEADERS]), bytes([_RESPONSE_BODY])):
        return False
    message = processing_request(frame)
    return bool(message.response_headers.end_of_stream or message.response_body.end_of_stream)
