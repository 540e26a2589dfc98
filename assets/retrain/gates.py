"""The retrain gate: floor, champion, slices, calibration, parity, schema, all on rows later than those fitted."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from assets.decision import Decision, Evidence
from assets.retrain.measures import auc, calibration_error, constant_loss, losses, skill, upper_bound
from assets.retrain.schema import ACCEPT_TAG, SchemaChange
from assets.retrain.settings import TrainingSettings
from assets.retrain.unseen import compared
from assets.task import Task
from assets.verdict import Verdict

# How often chance alone may call some slice worse.
SLICE_ERROR = 0.05
# Of the detector of harm: a hold-out without an error is no promise of none.
LEAST_BOUND = 1e-3


def loss_bound(losses: np.ndarray, days: np.ndarray, confidence: float = 0.95) -> float:
    """U_source of the harm detector: upper bound of the mean loss over the days of a time-ordered hold-out.

    losses: (n,) in [0, 1]; days: (n,) the day of each. At most 1, which is what a single day proves.
    """
    return max(min(upper_bound(losses, days, confidence), 1.0), LEAST_BOUND)


def judge(
    model: str,
    holdout: pd.DataFrame,
    target: str,
    candidate: np.ndarray,
    champion: np.ndarray | None,
    settings: TrainingSettings,
    parity: float,
    as_of: datetime,
    inputs: Mapping[str, str],
    change: SchemaChange | None = None,
    task: Task = "binary",
    seen_until: datetime | None = None,
) -> Decision:
    """May this candidate get a version? candidate, champion: (n,) answers to the rows of `holdout`.

    `holdout` has event_time, the target and the slice columns. change: of the inputs against the champion's, None
    without one; champion may be None where it cannot answer the rows for that. seen_until: of the last row that the
    champion was fitted on. Rows of the hold-out up to it are compared on only where there are too few others, and then
    prove nothing against the candidate. Evidence: schema, floor, champion, slices, calibration, parity; schema alone
    when it does not hold, floor alone (INCONCLUSIVE) when the hold-out is too small.
    """
    schema = _schema(holdout, target, candidate, champion, settings, change, task)
    recorded = {"schema": change.as_details()} if change is not None and change.names else {}
    if schema.verdict is not Verdict.PASS:
        return Decision(model, "retrain", as_of, schema.why, (schema,), inputs, recorded)
    labels = holdout[target].to_numpy(dtype=np.float64)
    if shortage := _shortage(labels, settings, task):
        return Decision(model, "retrain", as_of, shortage.why, (shortage,), inputs, {"rows": len(labels), **recorded})
    days = holdout["event_time"].dt.floor("D").to_numpy()
    mine = losses(labels, candidate, task)
    theirs = losses(labels, champion, task) if champion is not None else None
    rival_saw = seen_until if theirs is not None else None
    common = compared(holdout["event_time"], rival_saw, lambda rows: not _shortage(labels[rows], settings, task))
    rows, old = common.rows, theirs[common.rows] if theirs is not None else None
    against = _champion(days[rows], mine[rows], old, settings, change)
    slices, table = _slices(holdout[rows], mine[rows], old, settings)
    evidence = (
        schema,
        _floor(labels, candidate, settings, task),
        common.fair(against),
        common.fair(slices),
        _calibration(labels, candidate, champion, settings, task),
        _parity(parity, settings),
    )
    failed = [item for item in evidence if item.verdict is not Verdict.PASS]
    why = " ".join(item.why for item in failed) or f"The candidate holds on {len(labels)} later rows. {evidence[2].why}"
    details = _details(labels, days, candidate, champion, task) | {"parity": parity, "slices": table} | recorded
    return Decision(model, "retrain", as_of, why, evidence, inputs, details)


def _schema(
    holdout: pd.DataFrame,
    target: str,
    candidate: np.ndarray,
    champion: np.ndarray | None,
    settings: TrainingSettings,
    change: SchemaChange | None,
    task: Task,
) -> Evidence:
    def flaw(why: str, verdict: Verdict = Verdict.FAIL) -> Evidence:
        return Evidence("schema", verdict, why)

    missing = [name for name in ("event_time", target, *settings.slices) if name not in holdout]
    if missing:
        return flaw(f"The hold-out lacks {', '.join(missing)}: name slices after its columns.", Verdict.ERROR)
    if task == "binary" and not holdout[target].isin([0, 1]).all():
        return flaw(f"Labels in {target} are not all 0 or 1: check the feature set's label.", Verdict.ERROR)
    if not np.isfinite(holdout[target].to_numpy(dtype=np.float64)).all():
        return flaw(f"Labels in {target} are not all numbers: check the feature set's label.", Verdict.ERROR)
    what = "probabilities" if task == "binary" else "numbers"
    for name, scores in (("candidate", candidate), ("champion", champion)):
        if scores is None:
            continue
        if scores.shape != (len(holdout),):
            return flaw(f"The {name} gave answers of shape {scores.shape} for {len(holdout)} rows.")
        # The champion is what serves: its fault is an error of the system, not of the candidate.
        verdict = Verdict.FAIL if name == "candidate" else Verdict.ERROR
        good = (scores >= 0) & (scores <= 1) if task == "binary" else np.isfinite(scores)
        if bad := int(np.sum(~good)):
            return flaw(f"The {name} gave {bad} answers that are no {what}.", verdict)
    why = f"All answers to {len(holdout)} rows are {what}."
    return _inputs(change, why) if change is not None else Evidence("schema", Verdict.PASS, why, 0.0, 0.0)


def _inputs(change: SchemaChange, why: str) -> Evidence:
    """Clients go on sending what the champion takes. statistic: inputs that they would have to change."""
    if change.open:
        why = (
            f"The candidate {change.said()}: requests made for the champion would be refused. Keep the inputs, or "
            f"accept the change of {', '.join(change.open)} in training.accept_schema or by the run tag {ACCEPT_TAG}."
        )
        return Evidence("schema", Verdict.FAIL, why, float(len(change.open)), 0.0)
    if change.names:
        why = f"{why} The candidate {change.said()}: accepted by {change.by}."
    return Evidence("schema", Verdict.PASS, why, 0.0, 0.0)


def _shortage(labels: np.ndarray, settings: TrainingSettings, task: Task) -> Evidence | None:
    if len(labels) < settings.min_rows:
        why = f"The hold-out has {len(labels)} labelled rows, {settings.min_rows} are needed."
        return Evidence("floor", Verdict.INCONCLUSIVE, why, float(len(labels)), float(settings.min_rows))
    if task == "regression":
        if constant_loss(labels) > 0:
            return None
        return Evidence("floor", Verdict.INCONCLUSIVE, "All labels of the hold-out are alike: nothing can be judged.")
    fewest = int(min(labels.sum(), len(labels) - labels.sum()))
    if fewest < settings.min_class_rows:
        why = f"The rarer outcome has {fewest} rows in the hold-out, {settings.min_class_rows} are needed."
        return Evidence("floor", Verdict.INCONCLUSIVE, why, float(fewest), float(settings.min_class_rows))
    return None


def _floor(labels: np.ndarray, candidate: np.ndarray, settings: TrainingSettings, task: Task) -> Evidence:
    if task == "regression":
        value = skill(labels, candidate)
        verdict = Verdict.PASS if value >= settings.min_skill else Verdict.FAIL
        why = f"Saves {value:.1%} of the error of the best constant answer; {settings.min_skill:.1%} is the floor."
        return Evidence("floor", verdict, why, value, settings.min_skill)
    value = auc(labels, candidate)
    verdict = Verdict.PASS if value >= settings.min_auc else Verdict.FAIL
    why = f"AUC {value:.3f} against a floor of {settings.min_auc:.3f}."
    return Evidence("floor", verdict, why, value, settings.min_auc)


def _champion(
    days: np.ndarray,
    mine: np.ndarray,
    theirs: np.ndarray | None,
    settings: TrainingSettings,
    change: SchemaChange | None,
) -> Evidence:
    if theirs is None and change is not None:
        why = f"The champion cannot answer these rows, for the candidate {change.said()}: the other gates decide alone."
        return Evidence("champion", Verdict.PASS, why)
    if theirs is None:
        return Evidence("champion", Verdict.PASS, "There is no champion yet: the other gates decide alone.")
    difference = mine - theirs
    increase = float(pd.Series(difference).groupby(days).mean().mean())
    bound = upper_bound(difference, days, 0.95)
    verdict = Verdict.PASS if increase <= settings.max_loss_increase else Verdict.FAIL
    why = (
        f"The mean daily loss changes by {increase:+.4f} against the champion (95 % sure: at most {bound:+.4f}); "
        f"{settings.max_loss_increase:+.4f} is allowed."
    )
    return Evidence("champion", verdict, why, increase, settings.max_loss_increase)


def _slices(
    holdout: pd.DataFrame, mine: np.ndarray, theirs: np.ndarray | None, settings: TrainingSettings
) -> tuple[Evidence, list[dict[str, Any]]]:
    if not settings.slices:
        return Evidence("slices", Verdict.PASS, "No slices are asked for."), []
    frame = holdout[list(settings.slices)].assign(
        day=holdout["event_time"].dt.floor("D"),
        loss=mine,
        increase=mine - theirs if theirs is not None else math.nan,
    )
    table, small = _slice_table(frame, settings)
    aside = f" Too small to judge: {', '.join(small[:5])}{', ...' if len(small) > 5 else ''}." if small else ""
    if not table:
        why = f"No slice has the {settings.min_slice_rows} rows that are needed.{aside}"
        return Evidence("slices", Verdict.INCONCLUSIVE, why), table
    if theirs is None:
        why = f"There is no champion yet: {len(table)} slices are shown, none can have become worse.{aside}"
        return Evidence("slices", Verdict.PASS, why), table
    limit = settings.max_slice_loss_increase
    worst = max(table, key=lambda row: row["increase"])
    worse = [row for row in table if row["increase"] > max(limit, row["noise"])]
    verdict = Verdict.FAIL if worse else Verdict.PASS
    named = ", ".join(f"{row['slice']} by {row['increase']:+.4f}" for row in worse or [worst])
    why = f"Of {len(table)} slices {len(worse)} lose more than {limit:+.4f}; {'these' if worse else 'worst'}: {named}."
    return Evidence("slices", verdict, why + aside, worst["increase"], limit), table


def _slice_table(frame: pd.DataFrame, settings: TrainingSettings) -> tuple[list[dict[str, Any]], list[str]]:
    """Every slice of enough rows, and the names of the others.

    `noise` is what the increase of one slice would pass by chance, over all slices once in 1 / SLICE_ERROR gates: the
    day is the unit, and the error is shared out among the slices (Bonferroni).
    """
    from scipy.stats import t

    groups = [
        (f"{column}={'(missing)' if value is None or value != value else str(value)}", rows)
        for column in settings.slices
        for value, rows in frame.groupby(column, dropna=False, sort=True)
    ]
    judged = [(name, rows) for name, rows in groups if len(rows) >= settings.min_slice_rows]
    table = []
    for name, rows in judged:
        days = rows.groupby("day")["increase"].mean()
        known = len(days) > 1
        quantile = t.ppf(1 - SLICE_ERROR / len(judged), len(days) - 1) if known else math.inf
        noise = quantile * days.std(ddof=1) / math.sqrt(len(days)) if known else math.inf
        table.append(
            {
                "slice": name,
                "rows": len(rows),
                "loss": float(rows["loss"].mean()),
                "increase": float(days.mean()),
                "noise": float(noise),
            }
        )
    return table, [name for name, rows in groups if len(rows) < settings.min_slice_rows]


def _calibration(
    labels: np.ndarray, candidate: np.ndarray, champion: np.ndarray | None, settings: TrainingSettings, task: Task
) -> Evidence:
    """A week of storms puts every model off: the candidate may always miss by as much as the champion does."""
    if task == "regression":
        return Evidence("calibration", Verdict.PASS, "Numbers are answered: only chances can be held to frequencies.")
    error = calibration_error(labels, candidate)
    limit = settings.max_calibration_error
    if champion is not None:
        limit = max(limit, calibration_error(labels, champion))
    verdict = Verdict.PASS if error <= limit else Verdict.FAIL
    why = f"Probabilities miss the frequencies by {error:.3f} on average; {limit:.3f} is allowed."
    return Evidence("calibration", verdict, why, error, limit)


def _parity(difference: float, settings: TrainingSettings) -> Evidence:
    # Written so that NaN fails.
    verdict = Verdict.PASS if difference <= settings.max_parity else Verdict.FAIL
    why = (
        f"The ONNX model differs from the fitted one by at most {difference:.1e}; {settings.max_parity:.1e} is allowed."
    )
    return Evidence("parity", verdict, why, difference, settings.max_parity)


def _details(
    labels: np.ndarray, days: np.ndarray, candidate: np.ndarray, champion: np.ndarray | None, task: Task
) -> dict[str, Any]:
    mean = "mean_label" if task == "regression" else "base_rate"
    found: dict[str, Any] = {"rows": len(labels), "days": len(np.unique(days)), mean: float(labels.mean())}
    for name, scores in (("candidate", candidate), ("champion", champion)):
        if scores is None:
            continue
        found[name] = {"loss": float(losses(labels, scores, task).mean())}
        if task == "regression":
            found[name] |= {"skill": skill(labels, scores), "absolute_error": float(np.abs(scores - labels).mean())}
        else:
            found[name] |= {"auc": auc(labels, scores), "calibration_error": calibration_error(labels, scores)}
    return found
