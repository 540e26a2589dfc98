"""How a rollout climbs, what it guards, and how long it waits: the part of the spec about going live."""

from itertools import pairwise
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Rung = Literal["mirror"] | int
MIRROR: Literal["mirror"] = "mirror"
LADDER: tuple[Rung, ...] = (MIRROR, 1, 5, 25, 50, 100)


class CoverageSettings(BaseModel):
    """Which kinds of requests the challenger has to have answered before the next rung. Off unless `cells` is set:
    200 cells with 30 requests each want tens of thousands of challenger requests (`trimtab rollout` says how many).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cells: int = Field(
        default=0,
        ge=0,
        le=2000,
        description="Cells of the feature space, made when a model is trained; 0: no coverage.",
    )
    least: int = Field(default=30, ge=1, le=1000, description="Requests after which a cell counts as covered.")
    covered: tuple[float, ...] = Field(
        default=(0.80, 0.90, 0.95),
        min_length=1,
        description="Before each of the last rungs, as many as given: share of the traffic in covered cells.",
    )
    could_fail: tuple[float, ...] = Field(
        default=(0.35, 0.25, 0.20),
        min_length=1,
        description="Before the same rungs: most traffic that could fail for all the challenger has shown.",
    )
    most_beyond: float = Field(
        default=0.02, gt=0, le=1, description="Challenger requests beyond the reference: from here on it is stale."
    )
    need_percent: int = Field(
        default=0,
        ge=0,
        le=99,
        description="Below this rung, percent of requests whose x-trimtab-cell names a cell in need; 0: no favours.",
    )
    assignment_alpha: float = Field(
        default=0.01, gt=0, lt=0.5, description="Chance, per look, to call a random assignment to cells broken."
    )
    error_alpha: float = Field(default=0.05, gt=0, lt=0.5, description="Chance that a cell's error bound is too low.")

    @model_validator(mode="after")
    def _limits_belong_together(self) -> Self:
        if self.cells == 1:
            raise ValueError("cells = 1: one cell is always covered; 0 asks for no coverage, 200 is thorough")
        if len(self.covered) != len(self.could_fail):
            told = f"covered = {list(self.covered)}, could_fail = {list(self.could_fail)}"
            raise ValueError(f"{told}: give one of each a rung")
        if any(not 0 < limit <= 1 for limit in (*self.covered, *self.could_fail)):
            raise ValueError(f"covered = {list(self.covered)}, could_fail = {list(self.could_fail)}: shares in (0, 1]")
        if any(low > high for low, high in pairwise(self.covered)):
            raise ValueError(f"covered = {list(self.covered)}: a higher rung can't ask for less")
        return self

    def before(self, percents: tuple[int, ...], index: int) -> tuple[float, float] | None:
        """(covered, could_fail) asked for before the rung percents[index]; None where nothing is.

        >>> CoverageSettings(cells=9, covered=(0.8, 0.9), could_fail=(0.4, 0.3)).before((5, 50, 100), 1)
        (0.8, 0.4)
        """
        at = index - (len(percents) - len(self.covered))
        return (self.covered[at], self.could_fail[at]) if self.cells and at >= 0 else None


class OutcomeSettings(BaseModel):
    """What becomes of a request, by the label that is known of it while the rollout runs. Off unless `event` is set:
    most labels come days later, and the drift detector judges those.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    event: Literal["none", "label_0", "label_1", "wrong"] = Field(
        default="none",
        description="What is counted of requests with a label: that it is 0, that it is 1, or that the answer was "
        "wrong by more than wrong_by.",
    )
    harm: Literal["more", "fewer"] = Field(
        default="more", description="Which change of these events is harm: 'fewer' where they are sales."
    )
    wrong_by: float = Field(
        default=0.5, gt=0, description="Distance of answer and label beyond which an answer is wrong."
    )
    alpha: float = Field(default=0.015, gt=0, lt=0.5, description="Chance of a false rollback by the outcome.")
    tolerance: float = Field(
        default=0.0, ge=0, lt=1, description="Change for the worse, as a part of the champion's rate, that is no harm."
    )
    required: bool = Field(
        default=False,
        description="Promote only once the outcome is proven harmless; hold_deadline_s has to leave time for labels.",
    )
    non_inferiority_tolerance: float = Field(
        default=0.2, gt=0, lt=1, description="Change for the worse that this proof excludes."
    )

    @property
    def judged(self) -> bool:
        return self.event != "none"

    @model_validator(mode="after")
    def _nothing_is_required_of_no_event(self) -> Self:
        if self.required and not self.judged:
            raise ValueError("required = true, event = none: name the event that has to be proven harmless")
        return self


class CanarySettings(BaseModel):
    """Defaults: statistics of design section 4. A rollout keeps the settings it began with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ladder: tuple[Rung, ...] = Field(
        default=LADDER,
        min_length=1,
        description="Rungs in percent of traffic; 'mirror' may come first, rungs rise, the last is 100.",
    )
    mirror_percent: int = Field(
        default=100, ge=1, le=100, description="Share of the requests that is copied on the mirror rung."
    )
    mirror_requests: int = Field(default=200, ge=1, description="Copies the challenger answers before clients see it.")
    mirror_answers: int = Field(
        default=50, ge=0, description="Logged requests put to the challenger and to its ONNX file: answers must agree."
    )
    mirror_answer_tolerance: float = Field(
        default=1e-4, gt=0, lt=1, description="Largest difference between the two that is rounding."
    )
    requests_per_rung: int = Field(default=1000, ge=1, description="Requests, both pools together, before the next.")

    sticky_header: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        description="Requests with the same value of this header go to the same pool as long as its share only grows; "
        "then only a user's first error and first slow request count. Unset: each request by itself, at random.",
    )

    alpha_errors: float = Field(default=0.02, gt=0, lt=0.5, description="Chance of a false rollback by errors.")
    alpha_slow: float = Field(default=0.015, gt=0, lt=0.5, description="Chance of a false rollback by slow requests.")
    alpha_sample_ratio: float = Field(
        default=0.01, gt=0, lt=0.5, description="Chance to call a correct traffic split broken."
    )
    alpha_non_inferiority: float = Field(
        default=0.02, gt=0, lt=0.5, description="Chance, per guard, to promote a challenger that is worse than allowed."
    )
    # Zero: any increase that is proven is harm. How small a one is found the ladder's requests decide (the record
    # says it), and equal models are protected by the bounds alone: exact for errors that fall on the arms at random,
    # for slow requests whatever their bursts. Errors twice as frequent take 1.5k challenger requests; with 0.5, 7k.
    tolerance_errors: float = Field(
        default=0.0, ge=0, description="Errors may be this much more frequent than the champion's: 0.5 is half again."
    )
    tolerance_slow: float = Field(default=0.0, ge=0, description="The same for slow requests.")
    non_inferiority_tolerance: float = Field(
        default=0.5, gt=0, description="Promotion excludes errors this much more frequent than the champion's."
    )
    non_inferiority_tolerance_slow: float = Field(
        default=1.0, gt=0, description="Promotion excludes slow requests this much more frequent than the champion's."
    )
    max_error_rate: float = Field(
        default=0.005, gt=0, lt=1, description="An error rate proven to be below this is fine whatever the champion's."
    )
    max_slow_rate: float = Field(
        default=0.05, gt=0, lt=1, description="A share of slow requests proven to be below this is fine likewise."
    )
    slow_ms: float = Field(
        default=50.0, gt=0, description="Requests are slow above this, or above the champion's p95 if higher."
    )

    coverage: CoverageSettings = CoverageSettings()
    outcome: OutcomeSettings = OutcomeSettings()

    kill_share: float = Field(
        default=0.2, gt=0, le=1, description="Error share, in excess of the champion's, that ends a rollout at once."
    )
    kill_window_s: float = Field(default=30.0, gt=0, le=300, description="Seconds over which that share is taken.")
    kill_requests: int = Field(default=50, ge=1, description="Fewer challenger requests than this kill nothing.")

    load_deadline_s: float = Field(default=120.0, gt=0, description="Seconds to load and probe the challenger.")
    rung_deadline_s: float = Field(default=120.0, gt=0, description="Seconds a rung may take before it is given up.")
    hold_deadline_s: float = Field(
        default=300.0, gt=0, description="Seconds to wait on the last partial rung for proof that nothing is worse."
    )
    rollback_deadline_s: float = Field(
        default=30.0, gt=0, description="Seconds after which an unconfirmed rollback is an alert; it is tried on."
    )
    lease_s: float = Field(default=20.0, gt=0, description="Seconds a driver that fell silent keeps its rollout.")
    rollback_window_hours: float = Field(
        default=24.0, ge=0, description="Hours the old version stays warm: rollback is one weight change."
    )

    @model_validator(mode="after")
    def _ladder_rises_to_100(self) -> Self:
        percents = self.percents
        if MIRROR in self.ladder[1:]:
            raise ValueError(f"ladder = {list(self.ladder)}: 'mirror' can only be the first rung")
        if not percents or percents[-1] != 100 or percents[0] < 1:
            raise ValueError(f"ladder = {list(self.ladder)}: rungs are 1 to 100 percent and the last one is 100")
        if any(low >= high for low, high in pairwise(percents)):
            raise ValueError(f"ladder = {list(self.ladder)}: each rung must be higher than the one before")
        if self.coverage.need_percent in percents:
            told = f"coverage.need_percent = {self.coverage.need_percent}"
            raise ValueError(f"{told} is a rung of the ladder {list(self.ladder)}: take one more or less")
        if self.coverage.need_percent and self.sticky_header:
            told = f"sticky_header = {self.sticky_header!r}, coverage.need_percent = {self.coverage.need_percent}"
            raise ValueError(f"{told}: favoured requests would move their users, choose one of the two")
        if self.coverage.need_percent and self.outcome.judged:
            told = f"outcome.event = {self.outcome.event}, coverage.need_percent = {self.coverage.need_percent}"
            raise ValueError(f"{told}: favoured requests have a share of their own, choose one of the two")
        if len(percents) < 2:
            raise ValueError(f"ladder = {list(self.ladder)}: a rung below 100 is needed to compare with the champion")
        return self

    @property
    def percents(self) -> tuple[int, ...]:
        """The rungs that carry traffic."""
        return tuple(rung for rung in self.ladder if isinstance(rung, int))
