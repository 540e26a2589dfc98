"""Reports of a fit: gathered, sent together, and never a reason to stop it."""

from resources.training import BATCH, Training

Points = list[tuple[int, dict[str, float], int]]


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_reports_of_one_second_are_sent_together_with_their_steps_and_times() -> None:
    sent: list[Points] = []
    clock = Clock()
    told = Training("r", sent.append, clock)
    for step in range(5):
        told(step, {"loss": 1.0 - step / 10})
        clock.now_s += 0.3
    assert [[step for step, _, _ in points] for points in sent] == [[0, 1, 2, 3, 4]]
    assert sent[0][1] == (1, {"loss": 0.9}, 1_000_300)
    told(5, {"loss": 0.4})
    told.flush()
    assert [step for step, _, _ in sent[1]] == [5]
    assert told.sent == 6


def test_a_fast_fit_is_sent_before_it_fills_the_memory() -> None:
    sent: list[Points] = []
    told = Training("r", sent.append, Clock())
    for step in range(BATCH + 1):
        told(step, {"loss": 0.1})
    assert len(sent) == 1


def test_a_fit_goes_on_when_mlflow_does_not_and_the_loss_is_counted() -> None:
    tries = 0

    def broken(points: Points) -> None:
        nonlocal tries
        tries += 1
        raise OSError("gone")

    clock = Clock()
    told = Training("r", broken, clock)
    for step in range(10):
        told(step, {"loss": 0.1})
        clock.now_s += 2
    told.flush()
    assert (tries, told.dropped, told.sent) == (1, 10, 0)
    assert told.why == "OSError: gone"


def test_a_flush_of_nothing_sends_nothing() -> None:
    sent: list[Points] = []
    Training("r", sent.append, Clock()).flush()
    assert sent == []
