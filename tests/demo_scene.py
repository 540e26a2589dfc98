"""The demo's whole stack as tests use it: a champion that serves in it, and clients while a test goes on."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import cycle
from pathlib import Path

from pipelines import local
from pipelines.demo.clients import Clients, Pace, by_day
from pipelines.demo.loops import CANARY
from pipelines.demo.scene import Scene, set_scene
from pipelines.demo.story import MODEL, START, Stage, weeks_until
from pipelines.environments import enter
from pipelines.jobs import job_name
from resources.local.stack import down, up


@contextmanager
def running_scene(home: Path) -> Iterator[Scene]:
    """Started and stopped here; this process is one of the stack's meanwhile."""
    before = dict(os.environ)
    try:
        up(home, local.blueprint(home, local.SERVERS), report=lambda *_: None)
        addresses = local.read_addresses(home)
        where = enter(local.stack_environment(addresses, home))
        yield set_scene(Stage(where, addresses.gateway, addresses.url("dagster-webserver"), print, lambda *_: None))
    finally:
        down(home, local.strays(home))
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def sending(scene: Scene) -> Iterator[Clients]:
    """Requests of February and March, again and again until the block ends."""
    over, times = threading.Event(), scene.flights["event_time"]
    days = list(by_day(scene.flights[(times >= START) & (times < START + timedelta(days=28))]))

    def send() -> None:
        for _, rows in cycle(days):
            clients.send(rows)
            if over.is_set():
                return

    with Clients(scene.stage.gateway, MODEL, scene.features.features, Pace(CANARY)) as clients:
        thread = threading.Thread(target=send, name="clients", daemon=True)
        thread.start()
        try:
            yield clients
        finally:
            over.set()
            thread.join(timeout=60)


def launched_rollout(scene: Scene) -> str:
    """The run that rolls out the latest challenger."""
    (week,) = weeks_until(scene.spec, START + timedelta(days=1))
    tags = {"model": MODEL, "trigger": "test", "rollout/model": MODEL}
    job = job_name("improve", scene.spec.cadence)
    return scene.webserver.launch(job, [[MODEL, "canary_rollout"]], week.partition, tags)
