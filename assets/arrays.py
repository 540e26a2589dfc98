"""Arrays and what is said of them as one file of the store: a compressed npz, of which nothing is ever executed."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack(meta: bytes, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The file's bytes. meta: JSON; arrays: of any shape and plain dtype, by name."""
    buffer = io.BytesIO()
    # numpy's stub takes allow_pickle for one more array
    np.savez_compressed(buffer, meta=np.frombuffer(meta, dtype=np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(body: bytes, what: str, format_: int, remedy: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """meta and arrays. ValueError names what was expected and the remedy: for other bytes, and for another format."""
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta: dict[str, Any] = json.loads(arrays.pop("meta").tobytes())
    except Exception as error:
        raise ValueError(f"not {what} ({len(body)} bytes): {error}; {remedy}") from error
    if meta["format"] != format_:
        raise ValueError(f"{what} of format {meta['format']}, this code reads {format_}: {remedy}")
    return meta, arrays
