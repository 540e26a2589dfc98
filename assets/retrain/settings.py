"""What a candidate has to prove."""

from pydantic import BaseModel, ConfigDict, Field


class TrainingSettings(BaseModel):
    """Bounds of the retrain gate.

    Losses of a chance are Brier scores: squared differences of probability and outcome. Those of a number are absolute
    errors, in parts of the mean error that the best constant answer to the hold-out makes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lookback_days: int = Field(
        365, ge=1, description="Days of rows that a fit may see; what the shadow chose comes first."
    )
    holdout_days: int = Field(7, ge=1, description="Latest days, held out for the gates.")
    seed: int = Field(7, ge=0, description="Seed of the fit and of the importance.")
    min_rows: int = Field(500, ge=50, description="Fewest labelled rows of the hold-out that can decide.")
    min_class_rows: int = Field(20, ge=1, description="Fewest rows of each outcome in the hold-out; of chances.")
    min_auc: float = Field(0.55, ge=0.5, lt=1, description="Floor of the candidate's AUC on the hold-out.")
    min_skill: float = Field(
        0.05, ge=0, lt=1, description="Floor of a regression: part of the best constant answer's error that it saves."
    )
    max_loss_increase: float = Field(
        0.002, ge=0, le=1, description="Mean loss by which the candidate may exceed the champion's."
    )
    slices: tuple[str, ...] = Field((), description="Columns whose every value is judged for itself.")
    min_slice_rows: int = Field(200, ge=20, description="Slices with fewer rows are named, not judged.")
    max_slice_loss_increase: float = Field(
        0.02, ge=0, le=1, description="Mean loss by which the candidate may exceed the champion's within a slice."
    )
    max_calibration_error: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest mean gap of probability and frequency, or the champion's if larger; of chances.",
    )
    max_parity: float = Field(
        1e-5, gt=0, lt=0.1, description="Largest difference of the estimator and its ONNX; beyond 1 in parts of it."
    )
    accept_schema: tuple[str, ...] = Field(
        (), description="Inputs that may come, go or change their type against the champion's: its clients know of it."
    )
