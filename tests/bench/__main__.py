"""`make bench`: every figure that must be reached, printed and written to build/bench.json."""

import json
import sys
from pathlib import Path

import resources  # noqa: F401  # before any library: it says how they are to behave
from tests.bench import canary, drift, loop, profile, retrain, shadow, snapshot
from tests.bench.lines import Bench, Line

ROOMS: dict[str, Bench] = {
    "loop": loop.lines,
    "snapshot": snapshot.lines,
    "drift": drift.lines,
    "shadow": shadow.lines,
    "retrain": retrain.lines,
    "profile": profile.lines,
    "canary": canary.lines,
}


def main(rooms: list[str]) -> int:
    unknown = [room for room in rooms if room not in ROOMS]
    if unknown:
        print(f"no bench for {', '.join(unknown)}: there are {', '.join(ROOMS)}", file=sys.stderr)
        return 2
    lines: list[Line] = []
    for room in rooms or ROOMS:
        for line in ROOMS[room]():
            print(line, flush=True)
            lines.append(line)
    target = Path("build/bench.json")
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([line.to_dict() for line in lines], indent=1))
    missed = sum(not line.met for line in lines)
    print(f"{len(lines) - missed} of {len(lines)} reached; written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
