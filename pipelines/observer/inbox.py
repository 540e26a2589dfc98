"""What arrived and was not yet decoded. The event loop puts raw messages in, the decoder's thread takes them out."""

from collections import deque
from collections.abc import Iterator


class Inbox:
    """Bounded by bytes: what does not fit is dropped and counted, so that memory stays flat when decoding lags."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.dropped = 0
        self._messages: deque[bytes] = deque()
        # One writer each, so neither needs a lock: the loop adds to the first, the decoder to the second.
        self._came_bytes = 0
        self._gone_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._came_bytes - self._gone_bytes

    def put(self, message: bytes) -> None:
        if self.held_bytes + len(message) > self.limit_bytes:
            self.dropped += 1
            return
        self._came_bytes += len(message)
        self._messages.append(message)

    def take(self) -> Iterator[bytes]:
        while self._messages:
            message = self._messages.popleft()
            self._gone_bytes += len(message)
            yield message
