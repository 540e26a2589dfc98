"""What a spec asks for is what Kubernetes is asked for, held against dagster-k8s' own schema."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster_k8s.job import DagsterK8sJobConfig, construct_dagster_k8s_job, get_user_defined_k8s_config
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.compute import ASSETS, DEFAULTS, TAG, Compute, Resources, config, op_tags, run_tags
from pipelines.environments import environment
from pipelines.factory import IMPROVE, build_model_defs
from pipelines.jobs import IN_PROCESS, KUBERNETES, build_jobs
from pipelines.spec import load_spec
from resources.errors import SpecError

MODEL = Path(__file__).parents[3] / "pipelines/models/flight_delay/model.yaml"
ROOMS = st.sampled_from(sorted(DEFAULTS))
ASKED = st.builds(
    Compute,
    cpus=st.none() | st.floats(0.1, 256),
    memory_gib=st.none() | st.floats(0.25, 4096),
    gpus=st.integers(0, 16),
    image=st.none() | st.just("registry.local/fit:1"),
    node_selector=st.just({}) | st.just({"nvidia.com/gpu.product": "H100"}),
)


def pod(room: str, compute: Compute) -> dict[str, Any]:
    """The container and its pod as the API server would get them, in a job that dagster-k8s made."""
    asked = get_user_defined_k8s_config({TAG: json.dumps(config(room, compute))})
    made = construct_dagster_k8s_job(
        DagsterK8sJobConfig(job_image="ours:1", dagster_home="/opt/dagster"), ["true"], "job", asked
    )
    spec: dict[str, Any] = made.to_dict()["spec"]["template"]["spec"]
    return spec


@given(ROOMS, ASKED)
def test_memory_is_limited_to_what_is_requested_and_cores_are_not_limited(room: str, compute: Compute) -> None:
    resources = pod(room, compute)["containers"][0]["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]
    assert "cpu" not in resources["limits"]
    assert int(resources["requests"]["cpu"].removesuffix("m")) >= 100
    assert int(resources["requests"]["memory"].removesuffix("Mi")) >= 256


def test_a_mig_slice_is_asked_for_by_its_own_name_on_a_node_of_gpus() -> None:
    made = pod("retrain", Compute(mig="1g.10gb", memory_gib=8, node_selector={"nvidia.com/mig.strategy": "mixed"}))
    limits = made["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "8192Mi", "nvidia.com/mig-1g.10gb": "1"}
    assert made["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert made["tolerations"][0]["operator"] == "Exists"
    assert made["node_selector"] == {"nvidia.com/mig.strategy": "mixed"}


def test_a_slice_with_media_engines_has_the_name_that_its_plugin_gives_it() -> None:
    limits = config("profile", Compute(mig="1g.10gb+me"))["container_config"]["resources"]["limits"]
    assert limits["nvidia.com/mig-1g.10gb.me"] == "1"


def test_whole_gpus_image_and_taints_reach_the_pod() -> None:
    taint = {"key": "team", "value": "risk", "effect": "NoExecute"}
    made = pod("retrain", Compute.model_validate({"gpus": 2, "image": "fit:2", "tolerations": [taint]}))
    container = made["containers"][0]
    assert (container["image"], container["resources"]["limits"]["nvidia.com/gpu"]) == ("fit:2", "2")
    assert [item["key"] for item in made["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert made["tolerations"][1]["value"] == "risk"


def test_a_room_that_asks_for_nothing_has_defaults_no_gpu_and_the_image_of_its_code() -> None:
    made = pod("canary", Compute())
    assert made["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1024Mi"},
        "limits": {"memory": "1024Mi"},
        "claims": None,
    }
    assert made["containers"][0]["image"] == "ours:1"
    assert not made["tolerations"]


def test_labels_of_the_node_replace_the_launcher_s_instead_of_joining_them() -> None:
    assert config("retrain", Compute())["merge_behavior"] == "SHALLOW"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"memory_gib": 0.1}, "memory_gib"),
        ({"memory": 8}, "memory"),
        ({"cpus": 0}, "cpus"),
        ({"mig": "10gb"}, "mig"),
        ({"mig": "8g.10gb"}, "mig"),
        ({"gpus": 1, "mig": "1g.10gb"}, "not for both"),
        ({"image": "Fit: latest"}, "image"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "effect"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_in_the_spec(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Compute.model_validate(asked)


def test_a_spec_names_file_field_value_and_remedy(tmp_path: Path) -> None:
    raw = yaml.safe_load(MODEL.read_text()) | {"resources": {"retrain": {"memory_gib": -1}}}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(SpecError, match=r"resources\.retrain\.memory_gib = -1: .*0\.25"):
        load_spec(tmp_path / "model.yaml")


def test_every_room_with_a_pod_of_its_own_carries_its_tags() -> None:
    spec = load_spec(MODEL).model_copy(update={"resources": Resources(retrain=Compute(mig="2g.20gb"))})
    definitions = build_model_defs(spec)
    found = {
        asset.key.path[-1]: asset.op.tags
        for asset in definitions.assets or ()
        if isinstance(asset, dg.AssetsDefinition)
    }
    assert set(ASSETS.values()) == set(IMPROVE)
    for asset, tags in op_tags(spec.resources).items():
        assert json.loads(found[asset][TAG]) == tags[TAG]
    assert "mig-2g.20gb" in found["candidate_model"][TAG]
    assert TAG not in found["feature_snapshot"]


def test_a_run_that_watches_is_as_the_launcher_makes_it_until_the_spec_says_otherwise() -> None:
    assert run_tags(Resources()) == {}
    asked = get_user_defined_k8s_config(run_tags(Resources(watch=Compute(memory_gib=16))))
    assert asked.container_config["resources"]["limits"]["memory"] == "16384Mi"


def test_on_kubernetes_every_improving_step_has_a_pod_and_watching_stays_in_one_process() -> None:
    spec = load_spec(MODEL)
    names = {job.name: job.executor_def.name for job in build_jobs([spec], KUBERNETES) if job.executor_def is not None}
    assert names == {
        "watch_weekly": dg.in_process_executor.name,
        "page_weekly": dg.in_process_executor.name,
        "improve_weekly": KUBERNETES,
        "release_weekly": KUBERNETES,
    }
    here = {job.executor_def for job in build_jobs([spec], IN_PROCESS)}
    assert here == {dg.in_process_executor}


def test_the_executor_is_chosen_by_the_environment_and_a_misspelt_one_is_refused() -> None:
    assert environment({}).executor == IN_PROCESS
    assert environment({"TRIMTAB_EXECUTOR": "kubernetes"}).executor == KUBERNETES
    with pytest.raises(SpecError, match=r"TRIMTAB_EXECUTOR = 'k8s': .*in_process, kubernetes"):
        environment({"TRIMTAB_EXECUTOR": "k8s"})
