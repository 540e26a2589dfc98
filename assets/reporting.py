"""How a fit tells how it goes: a recipe that takes `report` is given a function of a step and its metrics.

    def fit(frame, target, seed, report=None):
        ...
        trees.fit(X, y, eval_set=[(X, y)], callbacks=[lightgbm_callback(report)])

What is reported is drawn in MLflow while the fit goes on.
"""

from collections.abc import Callable, Mapping
from typing import Any

# (step, value by name). Called from the thread that fits, often: it has to be cheap.
Report = Callable[[int, Mapping[str, float]], None]


def silent(step: int, metrics: Mapping[str, float]) -> None:
    """Nobody listens: what a recipe is given where no run of MLflow is kept, as for a challenger in the shadow."""


def lightgbm_callback(report: Report) -> Callable[[Any], None]:
    """For `callbacks=` of LightGBM's fit: each evaluation of each iteration, as `training.binary_logloss`."""

    def after(env: Any) -> None:
        found = {f"{data}.{name}": float(value) for data, name, value, *_ in env.evaluation_result_list or ()}
        if found:
            report(int(env.iteration), found)

    return after


def xgboost_callback(report: Report) -> Any:
    """For `callbacks=` of an XGBoost estimator: the last evaluation of each round, as `validation_0.logloss`."""
    from xgboost.callback import TrainingCallback

    class Reporting(TrainingCallback):  # type: ignore[misc]
        """Never ends the training."""

        def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
            found = {f"{data}.{name}": float(log[-1]) for data, logs in evals_log.items() for name, log in logs.items()}
            if found:
                report(epoch, found)
            return False

    return Reporting()
