"""How a shadow evaluation is judged: the part of the spec that says when retraining pays."""

from datetime import datetime, timedelta
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from assets.task import Task

CHECKS = {
    "labels": "Are enough labels known, and not too many missing?",
    "gain": "Does the challenger lose less than the champion on the same requests, so that retraining pays?",
    "slices": "Does it get no slice of the requests worse than the spec allows?",
    "worth": "Is the gain worth what a loop costs, by the prices of the spec?",
}
BLOCK_HOURS = {"6h": 6, "12h": 12, "D": 24, "2D": 48, "7D": 168}

LossName = Literal["log_loss", "brier", "payoff", "absolute", "squared", "pinball"]
LOSSES: dict[Task, tuple[LossName, ...]] = {
    "binary": ("log_loss", "brier", "payoff"),
    "multiclass": ("log_loss", "brier"),
    "regression": ("absolute", "squared", "pinball"),
}


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

    @property
    def lowest(self) -> float:
        """The least that one request can bring."""
        return min(self.true_positive, self.false_positive, self.true_negative, self.false_negative)

    @model_validator(mode="after")
    def _answers_matter(self) -> Self:
        if self.largest_difference == 0:
            raise ValueError("acting and not acting bring the same: give the cells different values")
        return self


class ChallengerSettings(BaseModel):
    """One more way to fit the challenger, compared over the same log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$", description="What the record calls it.")
    lookback_days: int = Field(ge=1, description="Days of rows before the evaluation window that its fit may see.")


class LearningSettings(BaseModel):
    """What rule: expected_loss believes before it has seen what became of its own decisions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(default=1.0, ge=0, le=1, description="Share of a shadow's gain expected to be realised.")
    pairs: float = Field(
        default=8.0, gt=0, description="How many past pairs of shadow and realised gain that belief is worth."
    )
    harm_weight: float = Field(
        default=1.75, gt=0, description="How much dearer a unit of harm done is than a unit of gain forgone."
    )
    horizon_days: float = Field(default=28, ge=1, description="Days after a decision over which its gain is realised.")


class ShadowSettings(BaseModel):
    """Defaults: statistics of design section 3. Loss units are those of `loss` (log_loss in nats)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: int = Field(default=7, ge=1, le=365, description="Length of the evaluation window, in days.")
    maturity_hours: float = Field(
        default=24.0, ge=0, description="A request counts once it is this old: by then its label has had time to come."
    )
    task: Task = Field(
        default="binary",
        description="What is answered: the chance of an event (label 0 or 1), a chance for each class (label: the "
        "number of the class), or a number.",
    )
    loss: LossName = Field(
        default="log_loss",
        description="What is compared on every request. binary: log_loss, brier, payoff (business value lost, by "
        "`payoff`); multiclass: log_loss, brier; regression: absolute, squared, pinball. Without it the task's first.",
    )
    quantile: float = Field(default=0.5, gt=0, lt=1, description="The quantile that loss: pinball asks for.")
    loss_cap: float | None = Field(
        default=None,
        gt=0,
        description="A regression's loss above this counts as this: one request must not outweigh a week.",
    )
    failed_loss: float | None = Field(
        default=None,
        description="Loss of a request that a model did not answer. Without it the worst that an answer can cost.",
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
    challengers: tuple[ChallengerSettings, ...] = Field(
        default=(),
        description="Several challengers at once over one log, the chance of a wrong yes shared out among them; the "
        "best that passes is chosen. Without any: one, fitted on training.lookback_days.",
    )
    rule: Literal["superiority", "non_inferiority", "expected_gain", "expected_loss"] = Field(
        default="expected_loss",
        description=(
            "superiority: the gain is proven, at any number of looks. non_inferiority: a loss beyond the margin is "
            "excluded, at any number of looks. expected_gain: one look at the end of the window at a looser level, "
            "for models where a missed gain costs as much as a wrong yes. expected_loss: weighs gain forgone against "
            "harm done and cost, and learns from what became of past decisions (`learning`)."
        ),
    )
    learning: LearningSettings = Field(
        default=LearningSettings(), description="Beliefs and prices of rule: expected_loss."
    )
    method: Literal["asymptotic", "betting"] = Field(
        default="asymptotic",
        description=(
            "asymptotic: confidence sequence over blocks. betting: exact for bounded losses at any number of blocks, "
            "and needs very many of them. For the first two rules."
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

    @model_validator(mode="before")
    @classmethod
    def _loss_of_the_task(cls, given: Any) -> Any:
        """Without a word about it, the first loss of the task."""
        if isinstance(given, dict) and "loss" not in given and given.get("task") in LOSSES:
            return {**given, "loss": LOSSES[given["task"]][0]}
        return given

    @model_validator(mode="after")
    def _window_holds_the_blocks(self) -> Self:
        if self.planned_blocks < self.min_blocks:
            raise ValueError(
                f"days = {self.days} holds {self.planned_blocks} blocks of {self.block}, min_blocks asks for "
                f"{self.min_blocks}: raise days, or lower block or min_blocks"
            )
        return self

    @model_validator(mode="after")
    def _loss_fits_the_task(self) -> Self:
        fitting = LOSSES[self.task]
        if self.loss not in fitting:
            raise ValueError(f"loss = {self.loss} does not fit task: {self.task}: choose {', '.join(fitting)}")
        if self.loss_cap is not None and self.task != "regression":
            raise ValueError(f"loss_cap belongs to task: regression, {self.loss} of {self.task} is bounded: remove it")
        if self.method == "betting" and self.one_look:
            raise ValueError(f"method: betting looks any number of times, {self.rule} once: give rule: superiority")
        if self.task == "regression" and self.method == "betting" and self.loss_cap is None:
            raise ValueError("method: betting needs bounded losses: give loss_cap, or method: asymptotic")
        return self

    @model_validator(mode="after")
    def _challengers_differ(self) -> Self:
        names = [item.name for item in self.challengers]
        if len(set(names)) < len(names):
            raise ValueError(f"challengers are called {', '.join(names)}: give each its own name")
        return self

    @model_validator(mode="after")
    def _payoff_is_given(self) -> Self:
        if (self.loss == "payoff") != (self.payoff is not None):
            raise ValueError("loss: payoff and the field payoff belong together: give both or neither")
        return self

    @property
    def checks(self) -> dict[str, str]:
        """The evidence a decision may hold: what each asks, by name."""
        asked = {"slices": bool(self.slices), "worth": self.worth is not None}
        return {name: asks for name, asks in CHECKS.items() if asked.get(name, True)}

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
        """Chance of a wrong yes under the chosen rule. Under expected_loss it only draws the interval."""
        return self.expected_gain_alpha if self.one_look else self.alpha

    @property
    def one_look(self) -> bool:
        """Whether a decision looks once, at the end of a window of its own."""
        return self.rule in ("expected_gain", "expected_loss")

    @property
    def threshold(self) -> float:
        """Gain per request, in units of the loss, that the lower bound has to exceed."""
        return -self.non_inferiority_margin if self.rule == "non_inferiority" else self.min_gain

    def window(self, as_of: datetime) -> tuple[datetime, datetime]:
        """[start, end) of event time that an evaluation at `as_of` reads: the latest `days` whose labels are mature."""
        end = as_of - timedelta(hours=self.maturity_hours)
        return end - timedelta(days=self.days), end
