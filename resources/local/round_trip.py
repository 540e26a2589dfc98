"""What it costs this machine to wake another process: a message over loopback, there and back."""

import socket
import statistics
import subprocess
import sys
import time

from resources.errors import StackError

# Long enough for a median, and as large as a request.
MEASURED_S, MESSAGE = 0.5, b"x" * 500
ECHO = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := peer.recv(4096):
        peer.sendall(message)
"""


def round_trip_us(measured_s: float = MEASURED_S) -> float:
    """Median in µs of one message to a process that sleeps until it comes, and its answer. `StackError` without one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        port = str(server.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", ECHO, port]) as peer:
            try:
                connection, _ = server.accept()
                with connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return 1e6 * statistics.median(_seconds(connection, measured_s))
            finally:
                peer.kill()


def _seconds(connection: socket.socket, measured_s: float) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + measured_s
    while (began := time.perf_counter()) < end or not found:
        connection.sendall(MESSAGE)
        left = len(MESSAGE)
        while left:
            if not (part := connection.recv(left)):
                raise StackError("doctor: the process that answers over loopback ended: nothing was measured")
            left -= len(part)
        found.append(time.perf_counter() - began)
    return found
