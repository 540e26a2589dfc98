"""Where each room runs on Kubernetes: cores, memory, GPU or MIG slice, image, as tags that dagster-k8s reads."""

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

TAG = "dagster-k8s/config"
GPU = "nvidia.com/gpu"
# Asset of each room that has a pod of its own.
ASSETS = {
    "shadow": "shadow_evaluation",
    "retrain": "candidate_model",
    "profile": "serving_profile",
    "canary": "canary_rollout",
}
# Cores and GiB where the spec says nothing: measured on the flights, and as much again.
DEFAULTS = {
    "watch": (1.0, 2.0),
    "shadow": (2.0, 4.0),
    "retrain": (2.0, 4.0),
    "profile": (2.0, 4.0),
    "canary": (0.5, 1.0),
}


class Toleration(BaseModel):
    """A taint of a node that a pod may be placed on all the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(min_length=1, max_length=316)
    value: str | None = Field(None, max_length=63, description="Without it any value is tolerated.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"

    def manifest(self) -> dict[str, str]:
        """As Kubernetes writes it."""
        matched = {"operator": "Exists"} if self.value is None else {"operator": "Equal", "value": self.value}
        return {"key": self.key, "effect": self.effect, **matched}


class Compute(BaseModel):
    """What the pod of one room asks for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: float | None = Field(None, ge=0.1, le=256, description="Cores it is promised; it may use idle ones beside.")
    memory_gib: float | None = Field(
        None,
        ge=0.25,
        le=4096,
        description="Memory it is promised and may not exceed. Set for retrain, it bounds the fit.",
    )
    gpus: int = Field(0, ge=0, le=16, description="Whole GPUs.")
    mig: str | None = Field(
        None, pattern=r"^[1-7]g\.\d{1,3}gb(\+me)?$", description="One MIG slice instead of a whole GPU, as 1g.10gb."
    )
    image: str | None = Field(
        None,
        max_length=255,
        pattern=r"^[a-z0-9][a-zA-Z0-9_.:/@-]*$",
        description="Image of the pod; the code location's own without it.",
    )
    node_selector: Mapping[str, str] = Field({}, description="Labels that the node has to carry.")
    tolerations: tuple[Toleration, ...] = Field((), description="Taints that are tolerated beside that of GPU nodes.")

    @model_validator(mode="after")
    def _one_device(self) -> Self:
        if self.gpus and self.mig:
            raise ValueError(f"gpus {self.gpus} and mig {self.mig}: ask for whole GPUs or for one slice, not for both")
        return self


class Resources(BaseModel):
    """The pods of a model's rooms. Outside Kubernetes only the memory of the fit is kept to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    watch: Compute = Compute()
    shadow: Compute = Compute()
    retrain: Compute = Compute()
    profile: Compute = Compute()
    canary: Compute = Compute()


def op_tags(resources: Resources) -> dict[str, dict[str, Any]]:
    """Tags of each asset's step by the asset's name. Snapshot and drift run in the pod of their run: `run_tags`."""
    return {asset: {TAG: config(room, getattr(resources, room))} for room, asset in ASSETS.items()}


def run_tags(resources: Resources) -> dict[str, str]:
    """Tags of a run that watches: its own pod does the work, and only a run's tags reach that.

    None when the spec says nothing: then the pod is as the launcher makes it, and the list of runs stays readable.
    """
    if resources.watch == Compute():
        return {}
    return {TAG: json.dumps(config("watch", resources.watch), sort_keys=True)}


def config(room: str, compute: Compute) -> dict[str, Any]:
    """The `dagster-k8s/config` of a pod.

    Memory is limited to what is requested: a pod that takes more than its share is ended, not its neighbours. Cores are
    only requested: a limit would slow it down beside idle ones. SHALLOW: a merge would unite the labels asked of the
    node with the launcher's, and no node has them all.
    """
    cpus, memory_gib = DEFAULTS[room]
    memory = f"{round((compute.memory_gib or memory_gib) * 1024)}Mi"
    requests = {"cpu": f"{round((compute.cpus or cpus) * 1000)}m", "memory": memory}
    limits = {"memory": memory, **_device(compute)}
    tolerations = [item.manifest() for item in (*_gpu_node(compute), *compute.tolerations)]
    container: dict[str, Any] = {"resources": {"requests": requests, "limits": limits}}
    pod: dict[str, Any] = {}
    if compute.image:
        container["image"] = compute.image
    if compute.node_selector:
        pod["node_selector"] = dict(compute.node_selector)
    if tolerations:
        pod["tolerations"] = tolerations
    return {"container_config": container, "pod_spec_config": pod, "merge_behavior": "SHALLOW"}


def _device(compute: Compute) -> dict[str, str]:
    if compute.mig:
        # The device plugin writes the + of a slice with media engines as a dot.
        return {f"nvidia.com/mig-{compute.mig.replace('+', '.')}": "1"}
    return {GPU: str(compute.gpus)} if compute.gpus else {}


def _gpu_node(compute: Compute) -> tuple[Toleration, ...]:
    return (Toleration(key=GPU),) if compute.gpus or compute.mig else ()
