"""A full fit in a process of its own: `python -m assets.retrain.child FOLDER LIMIT`.

The folder holds the job and takes the result; a line on standard output is one report, as JSON. The limit is in bytes:
beyond it an allocation fails here, and the process that waits lives on.
"""

import ctypes
import json
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from assets.recipe import load_recipe
from assets.retrain.full_fit import FullFit, Job, full_fit

JOB, ROWS, RESULT, ERROR = "job.json", "rows.parquet", "result.json", "error.json"
MASKS = ("earlier", "holdout", "recent")
PR_SET_PDEATHSIG = 1


def write_job(folder: Path, job: Job) -> None:
    """Put a job where the child looks for it."""
    rows = job.frame.assign(**{f"__{name}": getattr(job, name).to_numpy() for name in MASKS})
    rows.to_parquet(folder / ROWS, index=False)
    told = {
        "recipe": str(job.recipe.path.absolute()),
        "digest": job.recipe.digest,
        "features": dict(job.features),
        "target": job.target,
        "seed": job.seed,
        "task": job.task,
    }
    (folder / JOB).write_text(json.dumps(told))


def read_job(folder: Path) -> Job:
    """The job of `write_job`. ValueError when the recipe has changed since."""
    told = json.loads((folder / JOB).read_text())
    rows = pd.read_parquet(folder / ROWS)
    recipe = load_recipe(Path(told["recipe"]))
    if recipe.digest != told["digest"]:
        raise ValueError(f"{recipe.path} has changed since the fit was asked for: run it again")
    earlier, holdout, recent = (rows.pop(f"__{name}") for name in MASKS)
    features, target, seed, task = (told[name] for name in ("features", "target", "seed", "task"))
    return Job(recipe, rows, earlier, holdout, recent, features, target, seed, task)


def write_result(folder: Path, fitted: FullFit) -> None:
    """The numbers last: with them the result is complete."""
    (folder / "judged.onnx").write_bytes(fitted.judged)
    (folder / "model.onnx").write_bytes(fitted.onnx)
    (folder / RESULT).write_text(json.dumps({"parity": fitted.parity, "framework": fitted.framework}))


def read_result(folder: Path) -> FullFit:
    """What `write_result` wrote."""
    told = json.loads((folder / RESULT).read_text())
    judged, onnx = ((folder / name).read_bytes() for name in ("judged.onnx", "model.onnx"))
    return FullFit(judged, onnx, told["parity"], told["framework"])


def heard(line: str) -> tuple[int, dict[str, float]] | None:
    """The report that a line of the child's standard output is; None for whatever a recipe prints.

    >>> heard('{"step": 3, "metrics": {"loss": 0.5}}'), heard("epoch 3")
    ((3, {'loss': 0.5}), None)
    """
    try:
        told = json.loads(line)
        return int(told["step"]), {str(name): float(value) for name, value in told["metrics"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def read_error(folder: Path) -> str:
    """What the child said it failed of; '' when it had no time to say it."""
    file = folder / ERROR
    return str(json.loads(file.read_text())["error"]) if file.exists() else ""


def main(folder: Path, limit_bytes: int) -> int:
    """Fit; 0 when the result is there, 1 when the error is."""
    # It goes when the process that asked for it goes.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Data, not address space: libraries reserve far more of that than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

    def report(step: int, metrics: Mapping[str, float]) -> None:
        print(json.dumps({"step": step, "metrics": dict(metrics)}), flush=True)

    try:
        write_result(folder, full_fit(read_job(folder), report))
    except Exception as error:
        (folder / ERROR).write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
