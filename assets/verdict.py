"""The one verdict type and its one order of severity."""

from collections.abc import Iterable
from enum import IntEnum


class Verdict(IntEnum):
    """What a gate says. Larger is more severe; silence is not consent."""

    PASS = 0
    INCONCLUSIVE = 1
    ERROR = 2
    FAIL = 3


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The most severe verdict; INCONCLUSIVE when nothing was judged.

    >>> overall([Verdict.PASS, Verdict.ERROR]).name
    'ERROR'
    >>> overall([]).name
    'INCONCLUSIVE'
    """
    return max(verdicts, default=Verdict.INCONCLUSIVE)
