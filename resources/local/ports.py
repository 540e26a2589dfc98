"""Ports on loopback: the preferred one, the one asked for, or the next free one."""

import errno
import socket
from collections.abc import Collection, Mapping

from resources.errors import StackError

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # A connection that is still closing holds no port; a listener does, also one with SO_REUSEPORT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def choose(
    preferred: Mapping[str, int], explicit: Mapping[str, int], pinned: Mapping[str, int] | None = None
) -> dict[str, int]:
    """A port for every name of `preferred`, each another.

    Names are `part.port`. explicit: asked for by people, taken means `StackError`; pinned: held by a part of ours that
    runs. A preferred port that is taken falls to the next free one.
    """
    pinned = pinned or {}
    chosen: dict[str, int] = {}
    for name, port in explicit.items():
        _check_explicit(name, port, pinned, chosen)
        chosen[name] = port
    for name in preferred:
        if name in pinned:
            chosen[name] = pinned[name]
    for name, port in preferred.items():
        if name not in chosen:
            chosen[name] = _next_free(port, chosen.values())
    return {name: chosen[name] for name in preferred}


def _check_explicit(name: str, port: int, pinned: Mapping[str, int], chosen: Mapping[str, int]) -> None:
    part = name.partition(".")[0]
    if not 1 <= port <= 65535:
        raise StackError(f"{part}: port {port} is none: choose one from 1 to 65535")
    if name in pinned and pinned[name] != port:
        raise StackError(
            f"{part}: runs already, on port {pinned[name]}: `trimtab down` first, then ask for port {port}"
        )
    if port in chosen.values() or port in {p for other, p in pinned.items() if other != name}:
        raise StackError(f"{part}: port {port} is wanted by two parts: choose another with --port {part}=N")
    if name not in pinned and not is_free(port):
        raise StackError(f"{part}: port {port} is taken by another process: choose another with --port {part}=N")


def _next_free(port: int, taken: Collection[int]) -> int:
    for candidate in range(port, 65536):
        if candidate not in taken and is_free(candidate):
            return candidate
    raise StackError(f"no port from {port} upward is free")
