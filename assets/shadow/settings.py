"""How a shadow evaluation is judged: the part of the spec that says when retraining pays."""

from datetime import datetime, timedelta
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

BLOCK_HOURS = {"6h": 6, "12h": 12, "D": 24, "2D": 48, "7D": 168}


class WorthSettings(BaseModel):
    """Prices. Costs are in `currency`; the loss is the one that the shadow compares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    currency: str = Field(default="EUR", min_length=1, description="What the costs below are counted in.")
    loss_cost: float = Field(gt=0, description="What one unit of loss on one request costs.")
    loop_cost: float = Field(ge=0, description="What one loop costs: fit, sweep, canary, and who looks at it.")
    risk_cost: float = Field(default=0.0, ge=0, description="What a promoted challenger that does harm costs in all.")
    risk_chance: float = Field(default=0.05, ge=0, le=1, description="Chance that a promoted challenger does harm.")
    horizon_days: float = Field(default=28, gt=0, description="How long a challenger serves before the next.")
    realised_share: float = Field(
        default=1.0, gt=0, le=1, description="Share of a shadow's gain that is expected to stay once it serves."
    )


class PayoffSettings(BaseModel):
    """What one request brings, by what was answered and what came true. Costs are negative."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: float = Field(default=0.5, gt=0, lt=1, description="A probability at or above this means: act.")
    true_positive: float = Field(description="Acted, and the event came.")
    false_positive: float = Field(description="Acted, and no event came.")
    true_negative: float = Field(default=0.0, description="Did not act, and no event came.")
    false_negative: float = Field(default=0.0, description="Did not act, and the event came.")

    @property
    def largest_difference(self) -> float:
        """Largest |difference| that two answers to one request can make."""
        return max(abs(self.true_positive - self.false_negative), abs(self.false_positive - self.true_negative))

    @model_validator(mode="after")
    def _answers_matter(self) -> Self:
        if self.largest_difference == 0:
            raise ValueError("acting and not acting bring the same: give the cells different values")
        return self


class ShadowSettings(BaseModel):
    """Defaults: statistics of design section 3. Loss units are those of `loss` (log_loss in nats)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: int = Field(default=14, ge=1, le=365, description="Length of the evaluation window, in days.")
    maturity_hours: float = Field(
        default=24.0, ge=0, description="A request counts once it is this old: by then its label has had time to come."
    )
    loss: Literal["log_loss", "brier", "payoff"] = Field(
        default="log_loss", description="What is compared on every request; payoff: business value lost, by `payoff`."
    )
    payoff: PayoffSettings | None = Field(default=None, description="What answers bring; needed for loss: payoff.")
    worth: WorthSettings | None = Field(
        default=None, description="Prices of loss and loop. Without them any proven gain is worth a loop."
    )
    slices: tuple[str, ...] = Field(default=(), description="Inputs whose every value is compared for itself as well.")
    min_slice_labels: int = Field(default=200, ge=20, description="Slices with fewer labels are judged together.")
    max_slice_loss: float = Field(
        default=0.02, ge=0, description="Loss per request by which a challenger may be worse within a slice."
    )
    cluster: str | None = Field(
        default=None,
        description="Input that names who asked (user, device), when the same come back on many days: the requests of "
        "one are not independent evidence.",
    )
    rule: Literal["superiority", "non_inferiority", "expected_gain"] = Field(
        default="superiority",
        description=(
            "superiority: the gain is proven, at any number of looks. non_inferiority: a loss beyond the margin is "
            "excluded, at any number of looks. expected_gain: one look at the end of the window at a looser level, "
            "for models where a missed gain costs as much as a wrong yes."
        ),
    )
    method: Literal["asymptotic", "betting"] = Field(
        default="asymptotic",
        description=(
            "asymptotic: confidence sequence over blocks. betting: exact for bounded losses at any number of blocks, "
            "and needs very many of them. expected_gain has one method and ignores this."
        ),
    )
    alpha: float = Field(
        default=0.05, gt=0, lt=0.5, description="Chance of a wrong yes under superiority and non_inferiority."
    )
    expected_gain_alpha: float = Field(
        default=0.2, gt=0, lt=0.5, description="Chance of a wrong yes that expected_gain accepts: the price of speed."
    )
    min_gain: float = Field(
        default=0.0, description="Loss per request that retraining has to save: its cost in units of the loss."
    )
    non_inferiority_margin: float = Field(
        default=0.002, gt=0, description="Loss per request that a challenger may be worse by under non_inferiority."
    )
    min_labels: int = Field(default=200, ge=2, description="Fewer labelled requests than this decide nothing.")
    min_blocks: int = Field(default=7, ge=2, description="Fewer blocks decide nothing; 7 days are a weekly cycle.")
    max_missing_labels: float = Field(
        default=0.2, ge=0, le=1, description="Share of mature requests without a label beyond which nothing is decided."
    )
    block: Literal["6h", "12h", "D", "2D", "7D"] = Field(
        default="D", description="Requests of one block share their circumstances and count as one observation."
    )
    block_offset_hours: float = Field(
        default=0.0, gt=-24, lt=24, description="Hours after midnight UTC at which a block begins: the quiet of night."
    )

    @model_validator(mode="after")
    def _window_holds_the_blocks(self) -> Self:
        if self.planned_blocks < self.min_blocks:
            raise ValueError(
                f"days = {self.days} holds {self.planned_blocks} blocks of {self.block}, min_blocks asks for "
                f"{self.min_blocks}: raise days, or lower block or min_blocks"
            )
        return self

    @model_validator(mode="after")
    def _payoff_is_given(self) -> Self:
        if (self.loss == "payoff") != (self.payoff is not None):
            raise ValueError("loss: payoff and the field payoff belong together: give both or neither")
        return self

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the evidence a decision may hold."""
        asked = (("slices", bool(self.slices)), ("worth", self.worth is not None))
        return ("labels", "gain", *(name for name, wanted in asked if wanted))

    @property
    def columns(self) -> tuple[str, ...]:
        """Inputs that a comparison reads beside the scores, each once."""
        return tuple(dict.fromkeys((*self.slices, *((self.cluster,) if self.cluster else ()))))

    @property
    def planned_blocks(self) -> int:
        """Blocks that a whole window holds."""
        return self.days * 24 // BLOCK_HOURS[self.block]

    @property
    def level(self) -> float:
        """Chance of a wrong yes under the chosen rule."""
        return self.expected_gain_alpha if self.rule == "expected_gain" else self.alpha

    @property
    def threshold(self) -> float:
        """Gain per request, in units of the loss, that the lower bound has to exceed."""
        return -self.non_inferiority_margin if self.rule == "non_inferiority" else self.min_gain

    def window(self, as_of: datetime) -> tuple[datetime, datetime]:
        """[start, end) of event time that an evaluation at `as_of` reads: the latest `days` whose labels are mature."""
        end = as_of - timedelta(hours=self.maturity_hours)
        return end - timedelta(days=self.days), end
