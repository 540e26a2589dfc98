"""What work that may be interrupted notes on its way, so that whoever does it again goes on from there."""

from collections.abc import Callable
from dataclasses import dataclass

from resources.errors import StoreError
from resources.store import Store

NOTHING = b"{}"


@dataclass(frozen=True, slots=True)
class Notes:
    """One mutable object of the store. Losing it costs time, nothing else: a store that fails is told, not raised.

    say: hears why a note could not be read or written.
    """

    store: Store
    key: str
    say: Callable[[str], None]

    def read(self) -> bytes:
        """The last note, `NOTHING` without one."""
        try:
            pointer = self.store.pointer(self.key)
        except StoreError as error:
            self.say(f"no notes of an earlier try: {error}")
            return NOTHING
        return NOTHING if pointer is None else pointer.body

    def write(self, body: bytes) -> None:
        """In place of the last note, whoever wrote it."""
        try:
            pointer = self.store.pointer(self.key)
            if pointer is None or pointer.body != body:
                self.store.swap(self.key, body, None if pointer is None else pointer.etag)
        except StoreError as error:
            self.say(f"not noted: {error}")

    def forget(self) -> None:
        """Nothing is noted any more."""
        if self.read() != NOTHING:
            self.write(NOTHING)
