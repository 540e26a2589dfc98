"""What the spec says about the serving profile."""

from itertools import product
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST_CONFIGURATIONS = 64


class Setting(NamedTuple):
    """One configuration of the search space. Smaller is cheaper: of two that tie the smaller one is taken."""

    instances: int
    max_queue_delay_us: int
    intra_op_threads: int = 1
    max_batch_size: int = 64

    @property
    def name(self) -> str:
        return f"i{self.instances}-d{self.max_queue_delay_us}-t{self.intra_op_threads}-b{self.max_batch_size}"

    def __str__(self) -> str:
        threads = f", {self.intra_op_threads} threads each" if self.intra_op_threads > 1 else ""
        instances = f"{self.instances} instance{'s' * (self.instances > 1)}"
        return f"{instances} with a delay of {self.max_queue_delay_us} µs{threads}"


class ProfileSettings(BaseModel):
    """Which configurations are measured, under which load, and what makes one good enough."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    p99_latency_ms: float | None = Field(
        50, gt=0, le=60_000, description="Latency objective: 99 % of requests are faster. Null: no such limit."
    )
    p95_latency_ms: float | None = Field(
        None, gt=0, le=60_000, description="Latency objective: 95 % of requests are faster, beside or instead of p99."
    )
    objective: Literal["throughput", "cost"] = Field(
        "throughput", description="What is best within the limits: most requests a second, or the cheapest million."
    )
    instance_hour_price: float | None = Field(
        None, gt=0, description="What one instance costs an hour, in any currency; needed for the objective 'cost'."
    )
    instances: tuple[int, ...] = Field((1, 2), min_length=1, description="Model instances tried; the first is default.")
    queue_delays_us: tuple[int, ...] = Field(
        (0, 500), min_length=1, description="Waits for a fuller batch tried, in microseconds; the first is default."
    )
    max_batch_sizes: tuple[int, ...] = Field(
        (64,), min_length=1, description="Most rows Triton runs at once, tried; the first is default."
    )
    intra_op_threads: tuple[int, ...] = Field(
        (1,), min_length=1, description="Threads of one instance within one run, tried; the first is default."
    )
    kind: Literal["cpu", "gpu"] = Field("cpu", description="Where the instances run while they are measured.")
    concurrency: int = Field(4, ge=1, le=256, description="Clients that ask at the same time while measured.")
    max_queue_size: int = Field(
        256, ge=1, le=100_000, description="Requests that may wait; more are told 503. Holds from two instances on."
    )
    min_gain: float = Field(
        0.10, ge=0, lt=1, description="Least relative gain worth leaving the default for, if there is no noise."
    )
    quiet_band: float = Field(
        0.25, gt=0, lt=1, description="A/A noise beyond which the machine was not quiet: nothing measured is kept."
    )
    probe_rows: int = Field(16, ge=1, le=256, description="Real rows whose answers every replica must reproduce.")
    probe_tolerance: float = Field(
        1e-5,
        gt=0,
        lt=0.1,
        description="Largest difference from ONNX Runtime's answers; of numbers beyond 1 in parts of the largest.",
    )
    gpus: tuple[str, ...] = Field((), description="Devices that get a GPU configuration of their own, as 'h100'.")

    @field_validator("instances", "queue_delays_us", "max_batch_sizes", "intra_op_threads")
    @classmethod
    def _distinct(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(values)) != len(values) or min(values) < 0:
            raise ValueError(f"{list(values)} must be different numbers, none negative")
        return values

    @field_validator("instances", "max_batch_sizes", "intra_op_threads")
    @classmethod
    def _positive(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if min(values) < 1 or max(values) > 4096:
            raise ValueError(f"{list(values)} must be from 1 to 4096 each")
        return values

    @model_validator(mode="after")
    def _answerable(self) -> "ProfileSettings":
        if self.p99_latency_ms is None and self.p95_latency_ms is None:
            raise ValueError("p99_latency_ms and p95_latency_ms are both null: name at least one latency objective")
        if self.objective == "cost" and self.instance_hour_price is None:
            raise ValueError("objective is cost without instance_hour_price: say what one instance costs an hour")
        size = len(self.candidates)
        if size > MOST_CONFIGURATIONS:
            raise ValueError(f"{size} configurations are more than {MOST_CONFIGURATIONS}: list fewer values")
        return self

    @property
    def candidates(self) -> tuple[Setting, ...]:
        """The search space in the spec's order; the first is the documented default."""
        axes = (self.instances, self.queue_delays_us, self.intra_op_threads, self.max_batch_sizes)
        return tuple(Setting(*values) for values in product(*axes))

    @property
    def instance_kind(self) -> str:
        """Where instances run, as Triton's `instance_group` names it."""
        return f"KIND_{self.kind.upper()}"
