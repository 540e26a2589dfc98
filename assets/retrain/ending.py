"""How a fit ended, and what follows: out of memory, taken away, or wrong. Only the second is tried again, once."""

import signal
from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Why a fit did not finish."""

    OOM = "out of memory"
    PREEMPTED = "taken away"
    BUG = "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of a process or pod that did not finish. Unknown is None, '' or 0.

    code: exit code; a signal as -N (a Python parent) or 128 + N (a shell, Kubernetes).
    reason: of the pod, its container or its condition DisruptionTarget.
    error: type and text of an exception. said: the end of standard error.
    oom_kills: processes that the kernel ended in this container for want of memory while it ran.
    """

    code: int | None = None
    reason: str = ""
    error: str = ""
    said: str = ""
    oom_kills: int = 0


# Whole fits that may be started again after each cause.
RESTARTS = {Cause.OOM: 0, Cause.PREEMPTED: 1, Cause.BUG: 0}
# Reasons of pods that had to leave their node, and types of the condition DisruptionTarget (Kubernetes 1.26 and later).
TAKEN_AWAY = frozenset(
    {
        *("Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"),
        *("PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI", "DeletionByPodGC"),
        "TerminationByKubelet",
    }
)
# How numpy, C++, glibc, PyTorch and CUDA say it.
NO_MEMORY = (
    *("MemoryError", "bad_alloc", "Cannot allocate memory", "can't allocate memory", "OutOfMemoryError"),
    *("out of memory", "Unable to allocate"),
)
TAKING = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def cause_of(ending: Ending) -> Cause:
    """Why it ended. What the cluster or the kernel says comes before what the process said of itself.

    A SIGKILL that the kernel's count does not explain comes from outside: out of memory leaves its trace there or in
    the pod's reason.
    """
    if ending.reason == "OOMKilled":
        return Cause.OOM
    if ending.reason in TAKEN_AWAY:
        return Cause.PREEMPTED
    number = signal_of(ending.code)
    if number == signal.SIGKILL and ending.oom_kills:
        return Cause.OOM
    if number in TAKING:
        return Cause.PREEMPTED
    if any(words in text for words in NO_MEMORY for text in (ending.error, ending.said)):
        return Cause.OOM
    return Cause.BUG


def signal_of(code: int | None) -> int | None:
    """The signal that an exit code tells of.

    >>> signal_of(-9), signal_of(137), signal_of(1), signal_of(None)
    (9, 9, None, None)
    """
    if code is None or 0 <= code <= 128:
        return None
    return -code if code < 0 else code - 128


def explained(ending: Ending, memory_gib: float, again: bool = False) -> str:
    """What happened and what to do, in one sentence. memory_gib: what the fit was given; again: it is started again."""
    number = signal_of(ending.code)
    how = f"by signal {number}" if number else f"with exit code {ending.code}"
    match cause_of(ending):
        case Cause.OOM:
            return (
                f"The fit needed more than the {memory_gib:g} GiB of resources.retrain.memory_gib: give it more, or "
                "fit on fewer days (training.lookback_days). It is not tried again: it would end the same way."
            )
        case Cause.PREEMPTED if again:
            return f"The fit was ended from outside ({ending.reason or how}): it is started again, once."
        case Cause.PREEMPTED:
            return (
                f"The fit was ended from outside a second time ({ending.reason or how}): see who ends it, then run the "
                "step again."
            )
        case _:
            return f"The fit failed {how}: {ending.error or ending.said or 'it said nothing'}"
