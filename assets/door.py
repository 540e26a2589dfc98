"""What all doors share: from a partition to instants, from a decision to Dagster's and MLflow's pages."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import dagster as dg

from assets.decision import Decision
from assets.model import Model
from assets.verdict import Verdict
from resources.lineage import Lineage
from resources.mlflow_entities import Dataset
from resources.store import Store

# A run with this tag decides at that instant (ISO 8601), before its partition has ended.
AS_OF_TAG = "trimtab/as_of"
NO_CHECKS: Mapping[str, str] = MappingProxyType({})
MARK = {Verdict.PASS: "✅", Verdict.INCONCLUSIVE: "⚪", Verdict.ERROR: "🟠", Verdict.FAIL: "❌"}


@dataclass(frozen=True, slots=True)
class Interval:
    """[start, end) of a partition. A decision is taken at its end, with what was known then."""

    start: datetime
    end: datetime

    @property
    def as_of(self) -> datetime:
        return self.end


def interval(context: dg.AssetExecutionContext) -> Interval:
    """The instants of the partition being materialized; of one that is cut short, as long a span before the cut."""
    window = context.partition_time_window
    as_of = context.run.tags.get(AS_OF_TAG)
    end = min(window.end, datetime.fromisoformat(as_of)) if as_of else window.end
    return Interval(end - (window.end - window.start), end)


def room(
    model: Model,
    name: str,
    partitions: dg.PartitionsDefinition,
    description: str,
    *,
    kinds: set[str],
    after: str | None = None,
    checks: Mapping[str, str] = NO_CHECKS,
    gate: bool = False,
    pool: str | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """`@dg.asset` as every room wants it.

    after: the room before; checks: what each of them asks, by name; gate: what lies downstream may be skipped.
    """
    key = dg.AssetKey([model.name, name])
    return dg.asset(
        key=key,
        group_name=model.name,
        partitions_def=partitions,
        deps=[dg.AssetKey([model.name, after])] if after else None,
        owners=list(model.owners),
        kinds=kinds,
        tags={"model": model.name},
        op_tags=model.op_tags.get(name),
        check_specs=[dg.AssetCheckSpec(check, asset=key, description=asks) for check, asks in checks.items()],
        output_required=not gate,
        pool=pool,
        description=description,
    )


def decision_key(decision: Decision) -> str:
    """Where the store keeps a decision for ever."""
    return f"decisions/{decision.model}/{decision.gate}/{decision.as_of:%Y%m%dT%H%MZ}/{decision.digest}.json"


def record(
    context: dg.AssetExecutionContext,
    decision: Decision,
    store: Store,
    lineage: Lineage,
    *,
    artifacts: Mapping[str, bytes] | None = None,
    picture: str | None = None,
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Keep the decision in the store and MLflow; the metadata its pages show. picture: markdown; dataset: its input."""
    key = decision_key(decision)
    store.put(key, decision.to_json())
    numbers = {e.name: float(e.statistic) for e in decision.evidence if e.statistic is not None}
    run = lineage.run(
        decision.model,
        decision.gate,
        dagster_run_id=context.run_id,
        tags={
            **{"verdict": decision.verdict.name, "as_of": decision.as_of.isoformat(), "why": decision.why[:500]},
            "decision": decision.digest,
        },
        metrics=numbers,
        artifacts={"decision.json": decision.to_json(), **(artifacts or {})},
        dataset=dataset,
        again=context.retry_number > 0,
    )
    return {
        "verdict": dg.MetadataValue.text(f"{MARK[decision.verdict]} {decision.verdict.name}"),
        "why": dg.MetadataValue.text(decision.why),
        **({"picture": dg.MetadataValue.md(picture)} if picture else {}),
        "evidence": dg.MetadataValue.md(scorecard(decision)),
        "record": dg.MetadataValue.text(key),
        "mlflow_run": dg.MetadataValue.url(lineage.page(run)),
        **{name: six_digits(value) for name, value in numbers.items()},
    }


def scorecard(decision: Decision) -> str:
    """The evidence as a table people read at a glance."""
    rows = [
        f"| {MARK[e.verdict]} {e.name} | {number(e.statistic)} | {number(e.threshold)} | {e.why} |"
        for e in decision.evidence
    ]
    return "\n".join(["| | statistic | threshold | |", "| --- | --- | --- | --- |", *rows])


def number(value: float | None) -> str:
    """Four significant digits, a dash for none.

    >>> number(0.08123456), number(None)
    ('0.08123', '–')
    """
    return "–" if value is None else f"{value:.4g}"


def six_digits(value: float) -> float:
    """As many behind the point, counted from the first that is not zero: a difference of 3e-8 is shown as one.

    >>> six_digits(2.98023224e-08), six_digits(1234567.8)
    (2.98023e-08, 1234567.8)
    """
    return round(float(value), 6) if abs(value) >= 1 else float(f"{value:.6g}")


def check_results(
    context: dg.AssetExecutionContext,
    decision: Decision,
    names: Iterable[str],
    notes: Mapping[str, str] | None = None,
) -> Iterator[dg.AssetCheckResult]:
    """One check a piece of evidence. Only PASS passes; only FAIL is an error, the rest are warnings. notes: metadata
    of those that failed."""
    found = {item.name: item for item in decision.evidence}
    for name in names:
        item = found.get(name)
        verdict = item.verdict if item else Verdict.INCONCLUSIVE
        why = item.why if item else "not judged in this decision"
        metadata: dict[str, Any] = {"verdict": verdict.name, "why": why, "partition": context.partition_key}
        metadata["as_of"] = decision.as_of.isoformat()
        metadata |= dict(notes or {}) if verdict is Verdict.FAIL else {}
        if item and item.statistic is not None:
            metadata["statistic"] = six_digits(item.statistic)
        if item and item.threshold is not None:
            metadata["threshold"] = six_digits(item.threshold)
        yield dg.AssetCheckResult(
            asset_key=context.asset_key,
            check_name=name,
            passed=verdict is Verdict.PASS,
            severity=dg.AssetCheckSeverity.ERROR if verdict is Verdict.FAIL else dg.AssetCheckSeverity.WARN,
            description=why,
            metadata=metadata,
        )


def gate(
    context: dg.AssetExecutionContext,
    decision: Decision,
    metadata: Mapping[str, Any],
    names: Iterable[str],
    data_version: str | None = None,
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Close a gate: a PASS materializes; anything else is observed, and what lies downstream is skipped."""
    context.log.info(f"{decision.gate}: {decision.verdict.name}: {decision.why}")
    if decision.verdict is Verdict.PASS:
        version = dg.DataVersion(data_version) if data_version else None
        yield dg.MaterializeResult(asset_key=context.asset_key, metadata=dict(metadata), data_version=version)
    else:
        observation = dg.AssetObservation(context.asset_key, partition=context.partition_key, metadata=dict(metadata))
        context.log_event(observation)
    yield from check_results(context, decision, names)
