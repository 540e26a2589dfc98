"""The gRPC service that Envoy calls. It only takes bytes in: decoding on the loop would hold Envoy up."""

from collections.abc import AsyncIterator
from typing import Any

from pipelines.observer.inbox import Inbox

ACCESS_SERVICE = "envoy.service.accesslog.v3.AccessLogService"

_ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]


async def serve(inbox: Inbox, port: int) -> Any:
    """Start the server on loopback. The caller keeps it: unreferenced, a grpc.aio server closes in silence."""
    import grpc

    async def access(messages: AsyncIterator[bytes], context: Any) -> bytes:
        async for message in messages:
            inbox.put(message)
        return b""

    server = grpc.aio.server(options=_ANY_SIZE)
    methods = {"StreamAccessLogs": grpc.stream_unary_rpc_method_handler(access)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ACCESS_SERVICE, methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server
