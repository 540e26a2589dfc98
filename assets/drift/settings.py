"""What a person may choose about drift. Defaults: statistics.md, sections 1 and 2."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from assets.drift.budget import levels
from assets.drift.calendar import When, tag_of


class DriftSettings(BaseModel):
    """When inputs count as moved and when the champion counts as harmed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float = Field(
        default=0.05, gt=0, lt=1, description="False-alarm rate of one block. 1/alpha - 1 blocks warm it up."
    )
    floor: float = Field(default=0.05, ge=0, lt=1, description="Smallest weighted distance that matters, in [0, 1].")
    min_rows: int = Field(default=200, ge=1, description="Requests that a window needs before its inputs are judged.")
    min_block_rows: int = Field(
        default=50, ge=1, description="Requests (or labels) that a block needs to be judged alone."
    )
    block: str = Field(
        default="D", pattern=r"^([1-9]\d*)?(D|h|min)$", description="What is judged as one: D, 6h, h, 15min."
    )
    persistence_hits: int = Field(default=2, ge=1, description="Blocks above the alarm level that make an alarm ...")
    persistence_of: int = Field(default=3, ge=1, description="... among this many successive judged blocks.")
    history_cap: int = Field(
        default=60, ge=1, description="Past blocks that set the alarm level, newest first to stay."
    )
    naming_fdr: float = Field(
        default=0.05, gt=0, lt=1, description="False discovery rate among the features that are named."
    )
    unseen_mass: float = Field(
        default=0.05, gt=0, le=1, description="Share of never seen categories that fails the schema."
    )
    freshness_hours: float = Field(
        default=48, gt=0, description="Greatest age of the newest request at the window's end."
    )
    max_quiet_blocks: int = Field(default=0, ge=0, description="Blocks of a window that may pass without a request.")
    tolerance: float = Field(
        default=0.01, ge=0, lt=1, description="Loss above the reference's bound that is still accepted."
    )
    arl_days: float = Field(default=112, gt=0, description="Least mean time between two false alarms of harm.")
    min_labels: int = Field(default=200, ge=1, description="Labels needed before harm is judged.")
    harm_unit: Literal["block", "request"] = Field(
        default="block",
        description="What is one observation of the loss: a block's mean (labels of a day share it) or a label.",
    )
    alarms_per_year: float | None = Field(
        default=None,
        gt=0,
        description="At most so many false alarms a year over all features. Sets alpha and arl_days: leave them out.",
    )
    evidently_report: Literal["always", "on_alarm", "never"] = Field(
        default="on_alarm", description="After which checks an Evidently report is drawn, beside the loop."
    )
    quiet_weight: float = Field(
        default=0.1, gt=0, le=1, description="Weight of harm evidence while the inputs do not drift."
    )

    answer_weight: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the weighted distance that the champion's own answers have; 0: shown, not weighed.",
    )
    business_weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Feature -> factor on its importance to the champion: 2 counts twice, 0 not at all; 1 without one. "
        "Frozen with a version's reference.",
    )
    calendar: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Tag -> its days or hours: 2013-12-25, 12-25 (each year), 2013-12-24/2013-12-26, "
        "2013-03-08T18/2013-03-09T06. Tagged blocks are compared with their like.",
    )
    calendar_zone: str = Field(default="UTC", description="The place whose clocks the calendar is read by.")
    adaptive_rate: float = Field(
        default=0.01, ge=0, le=1, description="How fast the level of a tag with too few like blocks follows its alarms."
    )
    joint_rows: int = Field(
        default=2000, ge=0, description="Rows of the window that the test for joint drift looks at; 0: no test."
    )

    def tag_of(self, start: datetime) -> str:
        """The calendar's tag of the block that starts then; '' for an ordinary one."""
        return tag_of(self.calendar, self.calendar_zone, start, self.block_length)

    @field_validator("calendar")
    @classmethod
    def _dates(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for tag, entries in value.items():
            if not tag:
                raise ValueError("a tag of the calendar has no name: call it 'holiday', say")
            for entry in entries:
                When.parse(entry)
        return value

    @field_validator("calendar_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"{value!r} is no time zone: write one as America/New_York") from error
        return value

    @property
    def block_length(self) -> timedelta:
        """`block` as a duration. Blocks are absolute time: a change of the clock makes none longer."""
        number = self.block.rstrip("Dhmin")
        unit = {"D": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1)}[self.block[len(number) :]]
        return int(number or 1) * unit

    @property
    def word(self) -> str:
        """What people call a block."""
        return {"D": "day", "1D": "day", "h": "hour", "1h": "hour"}.get(self.block, f"{self.block} block")

    @model_validator(mode="before")
    @classmethod
    def _budgeted(cls, given: Any) -> Any:
        """The levels that an alarm budget asks for, in place of the budget's silence about them."""
        if not isinstance(given, Mapping) or given.get("alarms_per_year") is None:
            return given
        probe = cls.model_validate({name: value for name, value in given.items() if name != "alarms_per_year"})
        try:
            budget = float(given["alarms_per_year"])
        except (TypeError, ValueError):
            return given  # the field says what is wrong with it
        if not 0 < budget < math.inf:
            return given
        found = levels(budget, probe.block_length, probe.persistence_hits, probe.persistence_of)
        derived = {"alpha": found.alpha, "arl_days": found.arl_days}
        for name, value in derived.items():
            # Settings that are read back hold both: what a budget gives is no contradiction to it.
            if name in given and not math.isclose(float(given[name]), value, rel_tol=1e-9):
                raise ValueError(f"alarms_per_year sets {name} ({value:.4g}): leave {name} out")
        if found.history > probe.history_cap:
            raise ValueError(
                f"alarms_per_year {budget:g} needs a history of {found.history} blocks of {probe.block} and "
                f"history_cap is {probe.history_cap}: raise history_cap, persistence ({probe.persistence_hits} of "
                f"{probe.persistence_of}) or the budget"
            )
        return {**given, **derived}

    @model_validator(mode="after")
    def _consistent(self) -> "DriftSettings":
        if self.persistence_hits > self.persistence_of:
            raise ValueError(f"persistence_hits {self.persistence_hits} exceeds persistence_of {self.persistence_of}")
        if self.history_cap * self.alpha < 1 - self.alpha - 1e-9:
            needed = round(1 / self.alpha) - 1
            raise ValueError(f"history_cap {self.history_cap} can never reach alpha {self.alpha}: needs {needed}")
        return self
