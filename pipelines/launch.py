"""Starting and following runs through the Dagster webserver, as its own UI does."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resources.errors import StackError

LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on PipelineNotFoundError { message }
    ... on UnauthorizedError { message }
  }
}"""
RUN = "query Run($id: ID!) { runOrError(runId: $id) { __typename ... on Run { status startTime endTime } } }"
RUNS = """
query Runs($filter: RunsFilter!) {
  runsOrError(filter: $filter, limit: 20) {
    ... on Runs { results { runId status jobName creationTime startTime endTime tags { key value } } }
  }
}"""
STEPS = """
query Steps($id: ID!) { runOrError(runId: $id) { ... on Run { stepStats { stepKey startTime endTime status } } } }"""
WATCHED = """
query Watched($filter: RunsFilter!) {
  runsOrError(filter: $filter, limit: 1) { ... on Runs { results { runId endTime } } }
}"""
LOCATIONS = """
query { repositoriesOrError { __typename
  ... on RepositoryConnection { nodes { name location { name } pipelines { name } } }
  ... on PythonError { message } } }"""
DONE = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


@dataclass(frozen=True, slots=True)
class Webserver:
    """The GraphQL end of a Dagster webserver."""

    url: str

    def query(self, text: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One GraphQL request; `StackError` when there is no answer or it holds errors."""
        body = json.dumps({"query": text, "variables": dict(variables or {})}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
        except (urllib.error.URLError, TimeoutError, json.JSONDecodeError) as error:
            raise StackError(f"Dagster webserver at {self.url}: {error}: see `trimtab status`") from error
        if found.get("errors"):
            raise StackError(f"Dagster webserver at {self.url}: {found['errors'][0]['message']}")
        data: dict[str, Any] = found["data"]
        return data

    def launch(
        self, job: str, selection: Sequence[Sequence[str]], partition: str, tags: Mapping[str, str] | None = None
    ) -> str:
        """Queue a run of some assets of a job for one partition; its run id."""
        repository = self._repository(job)
        params = {
            "selector": {
                "repositoryLocationName": repository["location"]["name"],
                "repositoryName": repository["name"],
                "pipelineName": job,
                "assetSelection": [{"path": list(path)} for path in selection],
            },
            "executionMetadata": {
                "tags": [
                    {"key": key, "value": value}
                    for key, value in {"dagster/partition": partition, **(tags or {})}.items()
                ]
            },
            "runConfigData": {},
            "mode": "default",
        }
        answer = self.query(LAUNCH, {"params": params})["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            reason = answer.get("message") or answer.get("errors") or answer["__typename"]
            raise StackError(f"Dagster did not take a run of {job} for {partition}: {reason}")
        return str(answer["run"]["runId"])

    def status(self, run_id: str) -> str:
        """QUEUED, STARTED, SUCCESS, FAILURE, ... as Dagster names it."""
        return str(self.query(RUN, {"id": run_id})["runOrError"].get("status", "UNKNOWN"))

    def wait(self, run_id: str, timeout_s: float, pause: Callable[[float], None] = time.sleep) -> str:
        """Until the run is done; its last status. `StackError` after timeout_s."""
        deadline = time.monotonic() + timeout_s
        while (status := self.status(run_id)) not in DONE:
            if time.monotonic() > deadline:
                raise StackError(f"run {run_id} is {status} after {timeout_s:.0f} s: see {self.page(run_id)}")
            pause(0.5)
        return status

    def runs(self, job: str, model: str) -> list[dict[str, Any]]:
        """The latest runs of a job for a model, newest first."""
        wanted = {"pipelineName": job, "tags": [{"key": "model", "value": model}]}
        found: list[dict[str, Any]] = self.query(RUNS, {"filter": wanted})["runsOrError"].get("results", [])
        return found

    def steps(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Start and end of each step that ran (seconds since 1970), by the room's name."""
        stats = self.query(STEPS, {"id": run_id})["runOrError"].get("stepStats", [])
        ran = [item for item in stats if item["startTime"] is not None and item["status"] != "SKIPPED"]
        ran.sort(key=lambda item: float(item["startTime"]))
        return {item["stepKey"].split("__")[-1]: item for item in ran}

    def alarmed_at(self, model: str, partition: str) -> float | None:
        """When the latest check run of a partition ended (seconds since 1970): an alarm counts from there."""
        tags = [{"key": "model", "value": model}, {"key": "dagster/partition", "value": partition}]
        for job in (name for name in self.jobs() if name.startswith("watch_")):
            found = self.query(WATCHED, {"filter": {"pipelineName": job, "tags": tags}})["runsOrError"]["results"]
            if found:
                return float(found[0]["endTime"])
        return None

    def jobs(self) -> list[str]:
        """Names of all jobs of all code locations."""
        found = self.query(LOCATIONS)["repositoriesOrError"]
        return [item["name"] for node in found.get("nodes", []) for item in node["pipelines"]]

    def page(self, run_id: str) -> str:
        return f"{self.url}/runs/{run_id}"

    def _repository(self, job: str) -> dict[str, Any]:
        found = self.query(LOCATIONS)["repositoriesOrError"]
        for node in found.get("nodes", []):
            if job in [item["name"] for item in node["pipelines"]]:
                return dict(node)
        raise StackError(f"Dagster at {self.url} has no job {job}: is the code location loaded?")
