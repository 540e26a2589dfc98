"""What the spec says about the serving profile."""

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ProfileSettings(BaseModel):
    """Which configurations are measured, under which load, and what makes one good enough."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    p99_latency_ms: float = Field(50, gt=0, le=60_000, description="Latency objective: 99 % of requests are faster.")
    instances: tuple[int, ...] = Field((1, 2), min_length=1, description="Model instances tried; the first is default.")
    queue_delays_us: tuple[int, ...] = Field(
        (0, 500), min_length=1, description="Waits for a fuller batch tried, in microseconds; the first is default."
    )
    concurrency: int = Field(4, ge=1, le=256, description="Clients that ask at the same time while measured.")
    max_batch_size: int = Field(64, ge=1, le=4096, description="Most rows Triton runs at once.")
    max_queue_size: int = Field(
        256, ge=1, le=100_000, description="Requests that may wait; more are told 503. Holds from two instances on."
    )
    intra_op_threads: int = Field(1, ge=1, le=64, description="Threads of one instance within one run.")
    min_gain: float = Field(
        0.10, ge=0, lt=1, description="Least relative gain in throughput worth leaving the default for, if no noise."
    )
    probe_rows: int = Field(16, ge=1, le=256, description="Real rows whose answers every replica must reproduce.")
    probe_tolerance: float = Field(1e-5, gt=0, lt=0.1, description="Largest difference from ONNX Runtime's answers.")
    gpus: tuple[str, ...] = Field((), description="Devices that get a GPU configuration of their own, as 'h100'.")

    @field_validator("instances", "queue_delays_us")
    @classmethod
    def _distinct(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(values)) != len(values) or min(values) < 0:
            raise ValueError(f"{list(values)} must be different numbers, none negative")
        return values

    @field_validator("instances")
    @classmethod
    def _positive(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if min(values) < 1:
            raise ValueError(f"{list(values)} must be at least 1 each")
        return values
