"""Whether MLflow answers, asked before every call: with patience where a step has work to lose."""

from collections.abc import Callable
from urllib.error import URLError
from urllib.request import urlopen

from resources.errors import LineageError

# Between two tries: doubled from the first to the last of these.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 8.0


def reach(uri: str, what: str, timeout_s: float, patience_s: float, sleep: Callable[[float], None]) -> None:
    """Return once it answers; `LineageError` when it does not within patience_s of pauses.

    MLflow's own client retries a dead server for minutes without a word.
    """
    left_s, pause_s, tries = patience_s, FIRST_PAUSE_S, 1
    while True:
        try:
            with urlopen(f"{uri.rstrip('/')}/health", timeout=timeout_s):
                return
        except (URLError, OSError) as error:
            if left_s <= 0:
                often = "" if tries == 1 else f" ({tries} tries)"
                raise LineageError(
                    f"{what}: MLflow at {uri} does not answer{often}: {error}: start it, or correct its address"
                ) from error
        sleep(min(pause_s, left_s))
        left_s, pause_s, tries = left_s - pause_s, min(2 * pause_s, LAST_PAUSE_S), tries + 1
