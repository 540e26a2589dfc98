"""What arrived and was not yet decoded. The event loop puts raw bytes in, the decoder's thread takes them out."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Copy:
    """One request's copy: Envoy's messages as they came. Times are Unix seconds of the first and the last of them."""

    first_at: float
    last_at: float = 0.0
    frames: list[bytes] = field(default_factory=list)


class Inbox:
    """Bounded by bytes: what does not fit is dropped and counted, so that memory stays flat when decoding lags."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.access: deque[bytes] = deque()
        self.copies: deque[Copy] = deque()
        self.dropped = 0
        # One writer each, so neither needs a lock: the loop adds to the first, the decoder to the second.
        self._came_bytes = 0
        self._gone_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._came_bytes - self._gone_bytes

    def admits(self, size: int) -> bool:
        """Reserve room for so many bytes of a frame; False when there is none."""
        if self.held_bytes + size > self.limit_bytes:
            return False
        self._came_bytes += size
        return True

    def drop(self, frames: list[bytes]) -> None:
        """Give back the room of a copy that will not be put in."""
        self.dropped += 1
        self._came_bytes -= sum(map(len, frames))

    def take_access(self) -> Iterator[bytes]:
        while self.access:
            message = self.access.popleft()
            self._gone_bytes += len(message)
            yield message

    def take_copies(self) -> Iterator[Copy]:
        while self.copies:
            copy = self.copies.popleft()
            self._gone_bytes += sum(map(len, copy.frames))
            yield copy
