"""The gateway: Envoy, told by files. This side writes the splits; Envoy's own config dump confirms each change."""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from resources.envoy_config import ROUTE_TABLE, ROUTES_FILE
from resources.envoy_routes import routes
from resources.errors import GatewayError

SPLITS_FILE = "splits.json"
_MODEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Needed:
    """Inference requests whose header `x-trimtab-cell` names one of `cells` are split by these weights instead."""

    cells: tuple[int, ...]
    weights: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Split:
    """weights: pool to percent, in sum 100. mirror: the pool that gets copies whose answers are dropped.

    What one pool does not answer (no connection, a broken one, 503) is tried once more: in the other one where that is
    among the weights, be it with 0, else in the same. sticky: a request header by whose value the pool is chosen;
    requests without it are split at random. mirror_percent: share of the requests that is copied.
    """

    weights: Mapping[str, int]
    mirror: str | None = None
    sticky: str | None = None
    mirror_percent: int = 100
    needed: Needed | None = None


@dataclass(frozen=True, slots=True)
class Fallback:
    """A request that is answered 503, or nothing, is asked again in the lite tier, and its answer says `x-degraded`.

    after_ms: ask there as well when an answer takes longer, and take the first one that comes; None for never.
    """

    after_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Gateway:
    """The splits of all models. folder: where Envoy reads its routes; admin_url: Envoy's own admin interface."""

    folder: Path
    admin_url: str
    pools: tuple[str, ...] = ("blue", "green")

    def splits(self) -> dict[str, Split]:
        """Every model's split as last confirmed; empty before the first."""
        return read_splits(self.folder)[0]

    def split(self, model: str) -> Split | None:
        return self.splits().get(model)

    def set_split(self, model: str, split: Split, timeout_s: float = 10) -> float:
        """Give a model this split; seconds until Envoy's config dump shows it.

        `GatewayError` when the split is wrong, or when Envoy refuses or does not confirm within timeout_s: then
        the former splits are written back, so a later restart of Envoy serves what was confirmed.
        """
        validate(model, split, self.pools)
        with _locked(self.folder):
            return self._change({**self.splits(), model: split}, timeout_s)

    def remove(self, model: str) -> None:
        """Make the model unknown to clients. Removing one that has no split is harmless."""
        with _locked(self.folder):
            self._change({name: split for name, split in self.splits().items() if name != model}, 10)

    def fallbacks(self) -> dict[str, Fallback]:
        """Models whose requests may be answered by a copy in the lite tier."""
        return read_fallbacks(self.folder)

    def set_fallback(self, model: str, fallback: Fallback | None, timeout_s: float = 10) -> float:
        """Let the lite tier answer for the model in need, whatever its split is and becomes; None for never more.

        Seconds until Envoy shows it; `GatewayError` as in `set_split`.
        """
        with _locked(self.folder):
            kept = {name: one for name, one in self.fallbacks().items() if name != model}
            return self._change(self.splits(), timeout_s, kept | ({model: fallback} if fallback else {}))

    def _change(
        self, splits: dict[str, Split], timeout_s: float, fallbacks: Mapping[str, Fallback] | None = None
    ) -> float:
        (before, number), in_need = read_splits(self.folder), self.fallbacks()
        fallbacks = in_need if fallbacks is None else fallbacks
        changed = (splits, fallbacks) != (before, in_need)
        number += changed
        started = time.monotonic()
        refused = self._refusals(timeout_s) if changed else 0
        write_splits(self.folder, splits, number, fallbacks)
        try:
            self._confirm(str(number), refused, started + timeout_s)
        except GatewayError:
            # A number is never used again: Envoy may have taken it just now.
            write_splits(self.folder, before, number + 1, in_need)
            raise
        return time.monotonic() - started

    def _confirm(self, version: str, refused: int, deadline: float) -> None:
        shown = ""
        while time.monotonic() < deadline:
            shown = self._shown_version(max(deadline - time.monotonic(), 0.1))
            if shown == version:
                return
            if self._refusals(max(deadline - time.monotonic(), 0.1)) > refused:
                raise GatewayError(
                    f"Envoy refused routes version {version} (rds update_rejected) and serves version {shown}: "
                    f"its log says why; {self.folder / ROUTES_FILE} holds the former splits again"
                )
            time.sleep(_POLL_S)
        raise GatewayError(
            f"Envoy at {self.admin_url} still serves routes version {shown!r}, not {version}: "
            f"does it watch {self.folder / ROUTES_FILE}? The former splits are written back"
        )

    def _shown_version(self, timeout_s: float) -> str:
        dump = _json(self._admin("/config_dump?resource=dynamic_route_configs&mask=version_info", timeout_s))
        return "".join(config.get("version_info", "") for config in dump.get("configs", []))

    def _refusals(self, timeout_s: float) -> int:
        text = self._admin(f"/stats?filter=rds\\.{ROUTE_TABLE}\\.update_rejected", timeout_s)
        return sum(int(line.rpartition(":")[2]) for line in text.splitlines() if ":" in line)

    def _admin(self, path: str, timeout_s: float) -> str:
        try:
            with urlopen(self.admin_url + path, timeout=timeout_s) as answer:
                return str(answer.read().decode())
        except (URLError, OSError) as error:
            raise GatewayError(
                f"Envoy's admin interface {self.admin_url} does not answer: {error}: is it up?"
            ) from error


def validate(model: str, split: Split, pools: tuple[str, ...]) -> None:
    """Raise `GatewayError` naming what is wrong with the model's name or its split."""
    if not _MODEL_NAME.fullmatch(model):
        raise GatewayError(f"model {model!r}: a name has 1 to 255 letters, digits, '_', '-' or '.'")
    _validate_weights(model, split.weights, pools, *([split.mirror] if split.mirror else []))
    if split.sticky is not None and not _HEADER_NAME.fullmatch(split.sticky):
        raise GatewayError(f"{model}: sticky header {split.sticky!r}: small letters, digits and '-'")
    if not 1 <= split.mirror_percent <= 100:
        raise GatewayError(f"{model}: {split.mirror_percent} % of the requests can't be copied: 1 to 100")
    if split.needed is not None:
        if split.sticky is not None:
            raise GatewayError(f"{model}: a split that is sticky can't favour cells: a user would change pools")
        _validate_weights(model, split.needed.weights, pools)
        if not split.needed.cells or any(cell < 0 for cell in split.needed.cells):
            raise GatewayError(f"{model}: cells {list(split.needed.cells)} must be numbers from 0, at least one")


def _validate_weights(model: str, weights: Mapping[str, int], pools: tuple[str, ...], *others: str) -> None:
    unknown = [pool for pool in (*weights, *others) if pool not in pools]
    if unknown:
        raise GatewayError(f"{model}: unknown pool {unknown[0]!r}: the pools are {', '.join(pools)}")
    percents = list(weights.values())
    if any(isinstance(percent, bool) or not isinstance(percent, int) or percent < 0 for percent in percents):
        raise GatewayError(f"{model}: weights {dict(weights)} must be whole percents, none below 0")
    if sum(percents) != 100:
        raise GatewayError(f"{model}: weights {dict(weights)} sum to {sum(percents)}: make it 100")


def read_splits(folder: Path) -> tuple[dict[str, Split], int]:
    """The splits and their version number; none and 0 in a new folder."""
    try:
        saved = _json((folder / SPLITS_FILE).read_text())
    except FileNotFoundError:
        return {}, 0
    splits = {
        model: Split(
            entry["weights"],
            entry["mirror"],
            entry.get("sticky"),
            entry.get("mirror_percent", 100),
            _needed(entry.get("needed")),
        )
        for model, entry in saved["splits"].items()
    }
    return splits, int(saved["version"])


def _needed(saved: Mapping[str, Any] | None) -> Needed | None:
    return None if saved is None else Needed(tuple(saved["cells"]), saved["weights"])


def read_fallbacks(folder: Path) -> dict[str, Fallback]:
    """The fallbacks beside the splits; none in a new folder."""
    try:
        saved = _json((folder / SPLITS_FILE).read_text())
    except FileNotFoundError:
        return {}
    return {model: Fallback(entry["after_ms"]) for model, entry in saved.get("fallbacks", {}).items()}


def write_splits(
    folder: Path, splits: Mapping[str, Split], number: int, fallbacks: Mapping[str, Fallback] | None = None
) -> None:
    """Replace both files by rename: a reader sees the old or the new one, never half of one.

    fallbacks: those that the folder has when left out.
    """
    fallbacks = read_fallbacks(folder) if fallbacks is None else fallbacks
    in_need = {model: fallback.after_ms for model, fallback in fallbacks.items()}
    sticky = {model: split.sticky for model, split in splits.items() if split.sticky}
    copied = {model: split.mirror_percent for model, split in splits.items() if split.mirror_percent < 100}
    needed = {model: (split.needed.cells, split.needed.weights) for model, split in splits.items() if split.needed}
    weights = {model: (split.weights, split.mirror) for model, split in splits.items()}
    table = routes(weights, str(number), sticky, copied, needed, in_need)
    saved = {
        "version": number,
        "fallbacks": {model: {"after_ms": after_ms} for model, after_ms in sorted(in_need.items())},
        "splits": {model: _saved(split) for model, split in sorted(splits.items())},
    }
    for name, content in ((SPLITS_FILE, saved), (ROUTES_FILE, table)):
        fresh = folder / f".{name}.new"
        fresh.write_text(json.dumps(content, separators=(",", ":")))
        os.replace(fresh, folder / name)


def _saved(split: Split) -> dict[str, Any]:
    needed = split.needed and {"cells": list(split.needed.cells), "weights": dict(split.needed.weights)}
    return {**asdict(split), "weights": dict(split.weights), "needed": needed}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time on this machine, and until its change is confirmed: else two could undo each other."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise GatewayError(f"not JSON: {text[:80]!r}") from error
