"""Is the gain worth a loop? Money on both sides, by the prices of the spec."""

from assets.decision import Evidence
from assets.shadow.settings import WorthSettings
from assets.verdict import Verdict


def worth(gain: float, requests_per_day: float, prices: WorthSettings) -> Evidence:
    """gain: mean loss saved a request, as the shadow saw it. PASS when what it saves exceeds what a loop costs.

    A challenger serves for `horizon_days`; of the gain seen in the shadow only `realised_share` is expected to stay
    (statistics section 3b, lesson 3: last week's gain says little about the next month's).
    """
    saved = gain * prices.realised_share * requests_per_day * prices.horizon_days * prices.loss_cost
    cost = prices.loop_cost + prices.risk_chance * prices.risk_cost
    verdict = Verdict.PASS if saved > cost else Verdict.FAIL
    why = (
        f"{gain:+.5f} a request on {requests_per_day:.0f} requests a day is worth {saved:.2f} {prices.currency} over "
        f"{prices.horizon_days:g} days; a loop costs {cost:.2f} ({prices.loop_cost:g} to run, {prices.risk_chance:.0%} "
        f"risk of {prices.risk_cost:g})"
    )
    return Evidence("worth", verdict, why, saved - cost, 0.0)


def loop_cost(requests_per_day: float, prices: WorthSettings) -> float:
    """What one loop costs in units of the loss a request; +inf without requests. Its risk is not in it."""
    served = requests_per_day * prices.horizon_days * prices.loss_cost
    return prices.loop_cost / served if served > 0 else float("inf")
