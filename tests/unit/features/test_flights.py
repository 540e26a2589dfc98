"""The feature set of the flight-delay model: what is known at departure, and a label only after landing."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd

from resources.features import FeatureSet, read
from tests.fakes import MemoryStore

YEAR = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2014, 1, 2, tzinfo=UTC))
FEBRUARY = datetime(2013, 2, 1, tzinfo=UTC)


def test_every_flight_of_the_year_is_one_row(
    flights: FeatureSet, flights_store: MemoryStore, flights_of_2013: pd.DataFrame
) -> None:
    frame = read(flights, flights_store, *YEAR, as_of=YEAR[1] + timedelta(days=2))
    assert len(frame) == len(flights_of_2013) == 336_776
    assert frame["entity"].is_unique
    source = flights_of_2013
    late = source["arr_delay"].isna() | (source["arr_delay"] > 15)
    assert frame["late"].mean() == late.mean()


def test_the_first_flight_reads_as_people_know_it(flights: FeatureSet, flights_store: MemoryStore) -> None:
    frame = read(flights, flights_store, YEAR[0], FEBRUARY, as_of=FEBRUARY)
    first = frame.iloc[0]
    assert first["entity"] == "2013-01-01T10:15Z-UA-1545-EWR"
    assert first["event_time"] == pd.Timestamp("2013-01-01T10:15Z")
    assert (first["carrier"], first["hour"], first["weekday"], first["distance"]) == ("UA", 5, 2, 1400.0)
    assert first["temp"] == 39.92  # of 09:00Z, the hour before


def test_no_label_is_known_before_the_plane_stood_at_its_gate(
    flights: FeatureSet, flights_store: MemoryStore, flights_of_2013: pd.DataFrame
) -> None:
    frame = read(flights, flights_store, *YEAR, as_of=YEAR[1] + timedelta(days=2))
    source = flights_of_2013.assign(
        event_time=flights_of_2013["time_hour"] + pd.to_timedelta(flights_of_2013["minute"], unit="min")
    )
    source["entity"] = (
        source["event_time"].dt.strftime("%Y-%m-%dT%H:%MZ-")
        + source["carrier"] + "-" + source["flight"].astype(str) + "-" + source["origin"]
    )  # fmt: skip
    joined = frame.merge(source[["entity", "dep_time", "dep_delay", "air_time", "arr_delay"]], on="entity")
    flown = joined[joined["arr_delay"].notna()]
    waited = flown["label_known_at"] - flown["event_time"]
    airborne = pd.to_timedelta(flown["dep_delay"] + flown["air_time"], unit="min")
    # 235 minutes is the longest that both taxi times take together in this data.
    assert (waited >= airborne + timedelta(minutes=235)).all()
    cancelled = joined[joined["dep_time"].isna()]
    assert ((cancelled["label_known_at"] - cancelled["event_time"]) == timedelta(hours=2)).all()


def test_labels_of_the_last_hours_are_still_out(flights: FeatureSet, flights_store: MemoryStore) -> None:
    frame = read(flights, flights_store, YEAR[0], FEBRUARY, as_of=FEBRUARY)
    out = frame["late"].isna()
    assert 0 < out.mean() < 0.05
    assert frame.loc[out, "event_time"].min() > FEBRUARY - timedelta(hours=20)
    assert (frame.loc[~out, "label_known_at"] <= FEBRUARY).all()


def test_features_have_their_types_and_only_weather_can_be_missing(
    flights: FeatureSet, flights_store: MemoryStore
) -> None:
    frame = read(flights, flights_store, YEAR[0], FEBRUARY, as_of=FEBRUARY)
    kinds = {"string": object, "float": np.float64, "int": np.int64}
    assert all(frame[name].dtype == kinds[kind] for name, kind in flights.features.items())
    missing = frame[list(flights.features)].isna().sum()
    assert set(missing[missing > 0].index) <= {"temp", "humid", "wind_speed", "precip", "pressure", "visib"}
