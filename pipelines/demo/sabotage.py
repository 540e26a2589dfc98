"""`trimtab demo --sabotage`: a challenger that is really bad, or a broken split, and how it is caught."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from assets.canary.driver import load
from assets.canary.rollout import Phase, Rollout
from pipelines.demo.clients import Clients, Pace
from pipelines.demo.loops import CANARY
from pipelines.demo.scene import Scene, publish_challenger, send_until_done, set_scene
from pipelines.demo.story import MODEL, START, Stage, weeks_until
from pipelines.environments import Ports
from pipelines.jobs import job_name
from resources.envoy_config import ROUTES_FILE
from resources.envoy_routes import routes
from resources.errors import StackError
from resources.gateway import Split, read_splits
from resources.local.ledger import Ledger
from resources.local.processes import tree

# What the broken gateway gives the challenger, whatever is asked of it.
DELIVERED = 40


def run(stage: Stage, kind: str) -> dict[str, Any]:
    """A first release, a bad challenger on live traffic, and what became of it, as plain JSON values."""
    return roll_out(set_scene(stage), kind)


def roll_out(scene: Scene, kind: str) -> dict[str, Any]:
    """Publish the bad challenger, launch its rollout, send traffic until that has ended."""
    stage, doors, spec, webserver = scene.stage, scene.doors, scene.spec, scene.webserver
    champion = doors.lineage.version_of(MODEL, "champion")
    version = publish_challenger(kind, scene)
    stage.say(f"challenger {version} is published: sabotage {kind!r}")
    (week,) = weeks_until(spec, START + timedelta(days=1))
    tags = {"model": MODEL, "trigger": f"sabotage {kind}", "rollout/model": MODEL}
    names = scene.features.features
    with Clients(stage.gateway, MODEL, names, Pace(CANARY)) as clients, _striking(kind, scene):
        launched = webserver.launch(
            job_name("improve", spec.cadence), [[MODEL, "canary_rollout"]], week.partition, tags
        )
        stage.say(f"rollout on live traffic: {webserver.page(launched)}")
        send_until_done(clients, scene, launched)
    time.sleep(1.5)  # the gateway sends its records twice a second
    doors.traffic.flush()
    found = load(doors.store, MODEL)
    if found is None or found[0].version != version:
        raise StackError(f"the rollout of version {version} did not begin: see {webserver.page(launched)}")
    after = doors.lineage.version_of(MODEL, "champion")
    return {
        "model": MODEL,
        "sabotage": kind,
        **_caught(found[0], doors),
        "champion_kept": after is not None and champion is not None and after.version == champion.version,
        "failed_requests": clients.count.failed,
        "served_requests": clients.count.served,
        "failures": clients.count.failures,
        "run": webserver.page(launched),
    }


def _caught(rollout: Rollout, doors: Ports) -> dict[str, Any]:
    """detected_after_requests: clients' requests that the challenger got, by the gateway's own record."""
    access = doors.traffic.access_seen(MODEL, rollout.started_at)
    mine = access[access["pool"] == rollout.challenger_pool]
    back = next((at for at, text in rollout.diary if rollout.reason and rollout.reason in text), rollout.phase_at)
    return {
        "version": rollout.version,
        "rolled_back": rollout.phase is Phase.ROLLED_BACK,
        "reason": rollout.reason,
        "verdict": None if rollout.verdict is None else rollout.verdict.name,
        "detected_after_requests": len(mine),
        "challenger_errors": int((~mine["ok"] | (mine["attempts"] > 1)).sum()),
        "copies": rollout.mirrored.success + rollout.mirrored.fail,
        "seconds": {
            "start_to_detected": round((back - rollout.started_at).total_seconds(), 2),
            "detected_to_rolled_back": round((rollout.phase_at - back).total_seconds(), 3),
        },
        "events": [[at.isoformat(), text] for at, text in rollout.diary],
    }


@contextmanager
def _striking(kind: str, scene: Scene) -> Iterator[None]:
    """Beside the rollout, what happens to it from outside: a crash, or a gateway that does not do as it is told."""
    over = threading.Event()
    strike = {"crash": _kill, "split": _break_split}.get(kind)
    thread = threading.Thread(target=_strike, args=(strike, scene, over), name="sabotage", daemon=True)
    if strike is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if strike is not None:
            thread.join(timeout=10)


def _strike(strike: Callable[[Rollout, Scene], str], scene: Scene, over: threading.Event) -> None:
    """Once the challenger has clients of its own."""
    while not over.wait(0.1):
        found = load(scene.doors.store, MODEL)
        if found is None or found[0].closed or found[0].first_release:
            continue
        if found[0].phase is Phase.ADVANCING and found[0].confirmed:
            scene.stage.say(strike(found[0], scene))
            return


def _kill(rollout: Rollout, scene: Scene) -> str:
    home = scene.stage.where.home
    record = Ledger(home).read().parts[f"triton-{rollout.challenger_pool}"]
    process = record.process()
    if process is None:
        raise StackError(f"triton-{rollout.challenger_pool} is gone already: see {home / 'logs'}")
    for member in reversed(tree(process)):
        member.kill()
    return f"triton-{rollout.challenger_pool} is killed, at {rollout.settings.ladder[rollout.rung]} % of traffic"


def _break_split(rollout: Rollout, scene: Scene) -> str:
    """Another split than the confirmed one, under the confirmed version's number."""
    folder = scene.doors.gateway.folder
    splits, number = read_splits(folder)
    told = {rollout.challenger_pool: DELIVERED, str(rollout.champion_pool): 100 - DELIVERED}
    splits = {**splits, MODEL: Split(told)}
    fresh = folder / ".sabotage.new"
    fresh.write_text(json.dumps(routes({m: (s.weights, s.mirror) for m, s in splits.items()}, str(number))))
    os.replace(fresh, folder / ROUTES_FILE)
    return f"the gateway delivers {DELIVERED} % to the challenger, not {rollout.settings.ladder[rollout.rung]} %"
