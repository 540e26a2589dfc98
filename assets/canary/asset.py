"""The canary room's door."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from assets.canary import forecast
from assets.canary.coverage import Coverage
from assets.canary.driver import Driver, load
from assets.canary.forecast import plan, sentence
from assets.canary.judge import judge
from assets.canary.live import Live, latencies, measured
from assets.canary.looks import slow_threshold_ms
from assets.canary.page import page
from assets.canary.picture import figure, sparkline
from assets.canary.replay import same
from assets.canary.rollout import Rollout, begin, noted, weights
from assets.canary.settings import CanarySettings
from assets.cells import Cells, cells_key
from assets.champion import challenger_of
from assets.decision import Decision
from assets.door import gate, interval, record, room, scorecard
from assets.model import Model
from resources.errors import NotFound, ServingError
from resources.gateway import Gateway
from resources.lineage import Lineage
from resources.pools import Pools
from resources.releases import published
from resources.store import Store
from resources.traffic import Traffic

CHECKS = {
    "rollout": "Was the challenger promoted?",
    "enough": "Did each rung see as many requests as it needs to judge?",
    "mirror": "Does it answer copies of live requests without failing, before a client sees it?",
    "errors": "Does it fail no more requests than the champion, proven at every look?",
    "slow": "Is it slow no more often than the champion, proven at every look?",
    "business": "Is the outcome that the spec counts no worse?",
    "sample_ratio": "Do the pools get the shares of traffic that were set?",
    "kill_switch": "Is it clear of the limit that rolls back at once?",
    "coverage": "Were the parts of the feature space seen that the spec asks for?",
}
BEFORE = timedelta(minutes=2)
# Tag of a run that goes on with a rollout whose driver died: it never begins one of its own.
RESUMES = "resumes"
# Tags of a run that drives a rollout: Dagster's own retry would wait for the slots that the dead run holds, and begin
# another rollout once this one has ended.
ONCE = {"dagster/max_retries": "0"}


def canary_rollout(model: Model, partitions: dg.PartitionsDefinition, settings: CanarySettings) -> dg.AssetsDefinition:
    """`[model]/canary_rollout`: into the free pool, up the ladder, promoted or rolled back by statistics."""

    @room(
        model,
        "canary_rollout",
        partitions,
        "The challenger on live traffic: mirror, then rising shares, every look under guarantee.",
        kinds={"triton", "envoy", "mlflow"},
        after="serving_profile",
        checks=CHECKS,
        gate=True,
        pool=f"rollout_{model.name}",
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: dg.ResourceParam[Store],
        lineage: dg.ResourceParam[Lineage],
        traffic: dg.ResourceParam[Traffic],
        pools: dg.ResourceParam[Pools],
        gateway: dg.ResourceParam[Gateway],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        as_of = interval(context).as_of
        challenger = challenger_of(model.name, lineage)
        assignment, published_at = published(store, model.name, challenger.version)
        driver = Driver(context.run_id, store, pools, gateway, traffic, lineage, context.log.info)
        found = load(store, model.name)
        driver.etag = found[1].etag if found else None
        resumes = RESUMES in context.run.tags
        if found and not found[0].closed and found[0].digest != assignment.digest and not resumes:
            context.log.info(f"first to its end: the rollout of version {found[0].version} that was left open")
            driver.drive(found[0])
            found = load(store, model.name)
        if found and (resumes or not found[0].closed):
            rollout = found[0]
        else:
            champion, slow_ms, lately = champion_now(model.name, lineage, gateway, traffic, settings)
            cells = cells_now(model.name, challenger.version, champion, store, settings)
            free = next(pool for pool in pools.replicas if champion is None or pool != champion[1])
            rollout = begin(
                model.name,
                challenger.version,
                free,
                assignment.package,
                assignment.digest,
                settings,
                datetime.now(UTC),
                champion=champion,
                slow_ms=slow_ms,
                partition=context.partition_key,
                coverage=cells,
            )
            if champion is not None:
                said = sentence(plan(settings, lately, cells[1].reference if cells else None))
                rollout = noted(rollout, rollout.started_at, said)
                context.log.info(said)
        # A run that was asked to resume and finds the rollout closed has its record to write, nothing to drive.
        ended = rollout if rollout.closed else _watched(context, driver, rollout)
        decision = _decision(ended, as_of, driver, published_at, {"package": ended.digest})
        html = page(ended, decision, latencies(traffic.access_seen(model.name, ended.started_at)))
        metadata = record(
            context,
            decision,
            store,
            lineage,
            artifacts={"canary.png": figure(decision.details), "rollout.html": html.encode()},
            picture=sparkline(decision.details),
        )
        metadata |= {"version": ended.version, "replays": same(decision.to_dict())}
        yield from gate(context, decision, metadata, CHECKS)

    return asset


def _watched(context: dg.AssetExecutionContext, driver: Driver, rollout: Rollout) -> Rollout:
    """Driven to its end, while its page is in MLflow and each of its rungs on the asset's own page."""
    runs: list[str] = []

    def write(now: Rollout) -> None:
        decision = judge(now, datetime.now(UTC), {})
        access = driver.traffic.access_seen(now.model, now.started_at)
        artifacts = {"rollout.html": page(now, decision, latencies(access)).encode()}
        if not runs:
            tags = {"version": str(now.version)}
            runs.append(driver.lineage.run(now.model, "rollout", dagster_run_id=context.run_id, tags=tags))
        driver.lineage.follow(runs[0], measured(decision.details), len(access), artifacts)

    def tell(now: Rollout) -> None:
        decision = judge(now, datetime.now(UTC), {})
        metadata: dict[str, Any] = {
            "phase": now.diary[-1][1],
            "split": str(weights(now)),
            "picture": dg.MetadataValue.md(sparkline(decision.details)),
            "evidence": dg.MetadataValue.md(scorecard(decision)),
        }
        if runs:
            metadata["page"] = dg.MetadataValue.url(driver.lineage.page(runs[0]))
        context.log_event(dg.AssetObservation(context.asset_key, partition=context.partition_key, metadata=metadata))

    driver.show = live = Live(write, tell)
    # If it dies from here on, a sensor goes on with the rollout.
    context.instance.add_run_tags(context.run_id, ONCE)
    ended = None
    try:
        ended = driver.drive(rollout)
    finally:
        if trouble := live.close(ended):
            context.log.info(f"the rollout's page in MLflow is not complete: {trouble}")
    return ended


def champion_now(
    name: str, lineage: Lineage, gateway: Gateway, traffic: Traffic, settings: CanarySettings
) -> tuple[tuple[int, str] | None, float, forecast.Traffic]:
    """Version and pool of the champion, by what the gateway serves; above which latency a request is slow; its
    traffic lately.
    """
    registered = lineage.version_of(name, "champion")
    split = gateway.split(name)
    if registered is None or split is None:
        return None, settings.slow_ms, forecast.Traffic(0.0, 0.0, 0.0)
    pools = [pool for pool, percent in split.weights.items() if percent == 100]
    if not pools:
        raise ServingError(f"{name}: the gateway splits {dict(split.weights)} with no rollout: set one pool to 100")
    traffic.flush()
    recent = traffic.access_seen(name, datetime.now(UTC) - BEFORE)
    mine = recent[recent["pool"] == pools[0]]
    p95 = float(mine["latency_ms"].quantile(0.95)) if len(mine) else None
    slow_ms = slow_threshold_ms(p95, settings)
    errors, slow = (float(bad.mean()) if len(mine) else 0.0 for bad in (~mine["ok"], mine["latency_ms"] > slow_ms))
    lately = forecast.Traffic(len(mine) / BEFORE.total_seconds(), errors, slow)
    return (registered.version, pools[0]), slow_ms, lately


def cells_now(
    name: str, challenger: int, champion: tuple[int, str] | None, store: Store, settings: CanarySettings
) -> tuple[str, Coverage] | None:
    """The cells that coverage is counted by: those made with the challenger's snapshot, which is the newest; of a
    version that was trained elsewhere, the champion's. None for a first release, or where the spec asks for none.
    """
    if champion is None or not settings.coverage.cells:
        return None
    for version in (challenger, champion[0]):
        key = cells_key(name, version)
        with suppress(NotFound):
            return key, Coverage.of(Cells.from_bytes(store.get(key)))
    raise ServingError(
        f"{name}: canary.coverage asks for cells, and neither version {challenger} nor {champion[0]} has any: train "
        f"one by candidate_model, or set canary.coverage.cells to 0"
    )


def _decision(
    rollout: Rollout, as_of: datetime, driver: Driver, published_at: datetime, inputs: dict[str, str]
) -> Decision:
    decision = judge(rollout, as_of, inputs)
    timing: dict[str, Any] = {"published_at": published_at, "ended_at": rollout.phase_at}
    if driver.loaded_at:
        timing["published_to_loaded_s"] = round((driver.loaded_at - published_at).total_seconds(), 2)
    return replace(decision, details={**decision.details, "timing": timing})
