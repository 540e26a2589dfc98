"""What the spec says about the fallback copy."""

from pydantic import BaseModel, ConfigDict, Field, field_validator


class FallbackSettings(BaseModel):
    """How cheap the copy may be made, how much worse it may answer, and when the gateway turns to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(False, description="Keep a cheaper copy of the champion in the lite tier, for overload.")
    tree_shares: tuple[float, ...] = Field(
        (0.6, 0.4, 0.2), min_length=1, description="Shares of the trees tried, from the largest on down."
    )
    max_loss_increase: float = Field(
        0.005, gt=0, le=1, description="Mean Brier loss by which the copy may exceed its original (non-inferiority)."
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Of the bound on that increase, days as units.")
    holdout_days: int = Field(14, ge=2, description="Latest days, held out from a fit whose copies are compared.")
    min_rows: int = Field(500, ge=50, description="Fewest such rows that can decide.")
    after_ms: float | None = Field(
        None, gt=0, le=60_000, description="Ask the copy as well when the champion takes longer; 503 alone if null."
    )

    @field_validator("tree_shares")
    @classmethod
    def _falling(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < share < 1 for share in values) or sorted(values, reverse=True) != list(values):
            raise ValueError(f"{list(values)} must lie between 0 and 1, the largest first")
        return values
