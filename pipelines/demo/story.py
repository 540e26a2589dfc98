"""The demo from end to end: source data, a first champion on January, the replay, and what came of it."""

import io
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd

from pipelines.demo.clients import Clients, Pace
from pipelines.demo.loops import FULL, LoopWatch
from pipelines.demo.replay import Replay, Week
from pipelines.demo.results import decisions, promotions, refusals, static_scores, verdict_of, week_result
from pipelines.environments import Environment, ports
from pipelines.factory import RELEASE, partitions_by_cadence, rooms_of
from pipelines.jobs import job_name
from pipelines.launch import Webserver
from pipelines.spec import ModelSpec, load_spec
from resources.errors import StackError
from resources.features import FeatureRegistry, FeatureSet, read
from resources.lineage import Lineage
from resources.store import Store
from resources.traffic import Traffic

MODEL = "flight_delay"
START = datetime(2013, 2, 1, tzinfo=UTC)
END_OF_DATA = datetime(2014, 1, 1, tzinfo=UTC)
# Long after the last flight of the data: what was known then is everything.
HINDSIGHT = datetime(2014, 6, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stage:
    """The running stack as the demo needs it, and where its words go."""

    where: Environment
    gateway: str
    dagster: str
    say: Callable[[str], None]
    progress: Callable[[datetime, int], None]


def run(stage: Stage, through: datetime) -> dict[str, Any]:
    """Replay up to `through` (exclusive midnight); the result as plain JSON values, without the stack's own figures."""
    began = time.monotonic()
    doors = ports(stage.where)
    store, lineage, traffic = doors.store, doors.lineage, doors.traffic
    spec = load_spec(stage.where.models / MODEL / "model.yaml")
    features = FeatureRegistry.load(spec.features).resolve(spec.feature_set, START)
    webserver = Webserver(stage.dagster)

    put_sources(store, stage.say)
    weeks = weeks_until(spec, through)
    flights = read(features, store, START, END_OF_DATA, HINDSIGHT).rename(columns={features.label: "label"})
    first = first_release(webserver, spec, stage.say)

    pace = Pace(FULL)
    watch = LoopWatch(webserver, store, MODEL, job_name("improve", spec.cadence), pace, stage.say)
    with Clients(stage.gateway, MODEL, features.features, pace) as clients, watch:
        replay = Replay(
            model=MODEL,
            flights=flights,
            clients=clients,
            traffic=traffic,
            webserver=webserver,
            watch_job=job_name("watch", spec.cadence),
            watch=watch,
            verdict_of=lambda week: verdict_of(store, MODEL, week),
            say=stage.say,
            progress=stage.progress,
        )
        replay.play(weeks, START, through)
    time.sleep(1.5)  # the gateway sends its records twice a second
    traffic.flush()
    stage.say("reading the log and the decision records")
    loops = list(watch.runs.values())
    return {
        "model": MODEL,
        "from": START.isoformat(),
        "through": (through - timedelta(days=1)).isoformat(),
        **outcome(store, lineage, traffic, features, weeks, flights, through),
        "loops": [loop(webserver, store, run, weeks) for run in sorted(loops, key=lambda run: run["creationTime"])],
        "failed_requests": clients.count.failed,
        "failures": clients.count.failures,
        "seconds": {"first_release": round(first, 1), "replay": round(time.monotonic() - began, 1)},
    }


def put_sources(store: Store, say: Callable[[str], None]) -> None:
    """The flights and the weather into the store, as the warehouse would have them."""
    import pyarrow.parquet as pq

    from pipelines.models.flight_delay.source import raw_tables

    for name, table in raw_tables().items():
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        store.put(f"raw/{name}.parquet", sink.getvalue())
        say(f"source table {name}: {table.num_rows} rows")


def weeks_until(spec: ModelSpec, through: datetime) -> list[Week]:
    """Partitions of the replay; the last one may end after `through`, and is not checked then."""
    partitions = partitions_by_cadence([spec])[spec.cadence]
    found = []
    at = START
    while at < through:
        key = partitions.get_partition_key_for_timestamp(at.timestamp())
        span = partitions.time_window_for_partition_key(key)
        found.append(Week(key, max(span.start, START), span.end))
        at = span.end
    return found


def first_release(webserver: Webserver, spec: ModelSpec, say: Callable[[str], None]) -> float:
    """Train, profile and release a champion on what was known on 1 February; seconds."""
    began = time.monotonic()
    partitions = partitions_by_cadence([spec])[spec.cadence]
    key = partitions.get_partition_key_for_timestamp((START - timedelta(seconds=1)).timestamp())
    run = webserver.launch(
        job_name("release", spec.cadence),
        [[spec.name, room] for room in rooms_of(spec, RELEASE)],
        key,
        {"model": spec.name, "trigger": "first release", "rollout/model": spec.name},
    )
    say(f"first release, a champion on January: {webserver.page(run)}")
    status = webserver.wait(run, 300)
    if status != "SUCCESS":
        raise StackError(f"the first release ended as {status}: see {webserver.page(run)}")
    took = time.monotonic() - began
    say(f"champion 1 serves after {took:.0f} s")
    return took


def outcome(
    store: Store,
    lineage: Lineage,
    traffic: Traffic,
    features: FeatureSet,
    weeks: list[Week],
    flights: pd.DataFrame,
    through: datetime,
) -> dict[str, Any]:
    """Weeks, promotions, refusals and completeness, from what was recorded."""
    seen = flights[flights["event_time"] < through]
    scores = static_scores(lineage.onnx(MODEL, 1), seen, features.features)
    rows = []
    for week in weeks:
        end = min(week.end, through)
        records = decisions(store, MODEL, week.end) if week.end <= through else {}
        answers, access = traffic.answers(MODEL, week.start, end), traffic.access(MODEL, week.start, end)
        rows.append(asdict(week_result(week, records, answers, access, scores)))
    complete = traffic.completeness()
    return {
        "weeks": [_finite(row) for row in rows],
        "promotions": promotions(store, MODEL, weeks),
        "refusals": refusals(store, MODEL, weeks),
        "completeness": {
            "requests": complete.requests,
            "access": complete.share_access,
            "answers": complete.share_answers,
        },
    }


def loop(webserver: Webserver, store: Store, run: Mapping[str, Any], weeks: list[Week]) -> dict[str, Any]:
    """One improve run: what triggered it, how it ended, and its phases timed one by one."""
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    steps = webserver.steps(run["runId"])
    partition = tags["dagster/partition"]
    as_of = next(week.end for week in weeks if week.partition == partition)
    records = decisions(store, MODEL, as_of)
    alarm = webserver.alarmed_at(MODEL, partition)
    last = [gate for gate in records if gate != "drift"][-1:] or ["shadow"]
    verdict = records[last[0]]["verdict"] if last[0] in records else run["status"]
    phases = {"queue": round(min(s["startTime"] for s in steps.values()) - alarm, 1)} if steps and alarm else {}
    phases |= {name: round(s["endTime"] - s["startTime"], 1) for name, s in steps.items() if s["endTime"]}
    promoted = last[0] == "canary" and verdict == "PASS"
    ended = max((s["endTime"] or 0.0 for s in steps.values()), default=0.0)
    timing = records.get("canary", {}).get("details", {}).get("timing", {})
    if promoted:
        ended = datetime.fromisoformat(timing["ended_at"]).timestamp()
    return {
        "as_of": as_of.isoformat(),
        "trigger": tags.get("trigger", ""),
        "outcome": "promoted" if promoted else f"{last[0]} {verdict}",
        "promoted": promoted,
        "seconds": round(ended - alarm, 1) if alarm and ended else None,
        "published_to_loaded": timing.get("published_to_loaded_s"),
        "phases": phases,
        "run": webserver.page(run["runId"]),
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def to_json(result: Mapping[str, Any]) -> str:
    return json.dumps(result, indent=1, allow_nan=False)
