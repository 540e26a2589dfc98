"""Which copy is cheap enough and still good enough: non-inferiority, from the largest copy on down. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from assets.decision import Decision, Evidence
from assets.fallback.settings import FallbackSettings
from assets.retrain.measures import losses, upper_bound
from assets.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy and its answers. share: of the trees; scores: (n,) probabilities of 1; cost: its time as a share.

    Scores come from a fit that saw none of the rows: on rows it was fitted on, an original looks better than it is.
    """

    share: float
    scores: np.ndarray
    cost: float


def judge(
    model: str,
    labels: np.ndarray,
    days: np.ndarray,
    original: np.ndarray,
    copies: Sequence[Copy],
    settings: FallbackSettings,
    as_of: datetime,
    inputs: Mapping[str, str],
) -> Decision:
    """PASS with `details.choice`, the share of trees of the smallest copy within the margin; FAIL when none is.

    labels, original: (n,) of the same rows, days: (n,) labels of their days. Copies come from the largest on down and
    the walk ends at the first that is not within the margin, so its many looks cost no confidence (fixed sequence:
    Westfall & Krishen 2001). A copy that is not cheaper is not taken.
    """
    if len(labels) < settings.min_rows or len(set(days.tolist())) < 2:
        why = (
            f"{len(labels)} labelled rows of {len(set(days.tolist()))} days: "
            f"needed are {settings.min_rows} rows of 2 days"
        )
        return Decision(model, "fallback", as_of, why, (Evidence("loss", Verdict.INCONCLUSIVE, why),), inputs)
    walked, chosen = [], None
    for copy in copies:
        increase = losses(labels, copy.scores) - losses(labels, original)
        bound = upper_bound(increase, days, settings.confidence)
        walked.append({"share": copy.share, "increase": float(increase.mean()), "bound": bound, "cost": copy.cost})
        if not bound <= settings.max_loss_increase:
            break
        chosen = copy if copy.cost < 1 else chosen
    last = next((step for step in walked if chosen is not None and step["share"] == chosen.share), walked[-1])
    verdict = Verdict.PASS if chosen is not None else Verdict.FAIL
    why = (
        f"{last['share']:.0%} of the trees: loss higher by at most {last['bound']:.4f} ({settings.confidence:.0%}), "
        f"allowed is {settings.max_loss_increase:g}; {last['cost']:.0%} of the time"
    )
    if chosen is None:
        why += ": no copy is both cheaper and good enough, overload is answered 503"
    evidence = Evidence("loss", verdict, why, float(last["bound"]), settings.max_loss_increase)
    details = {"copies": walked, **({"choice": chosen.share} if chosen is not None else {})}
    return Decision(model, "fallback", as_of, why, (evidence,), inputs, details)
