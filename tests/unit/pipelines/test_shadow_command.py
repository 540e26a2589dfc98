"""What `trimtab shadow` shows is what was decided."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from assets.decision import Decision
from assets.door import decision_key
from assets.shadow.judge import judge
from assets.shadow.settings import ShadowSettings
from pipelines import environments, local
from pipelines.cli import main
from pipelines.commands_shadow import drawn, recorded, told
from resources.errors import NotFound
from tests.fakes import MemoryStore
from tests.unit.shadow.test_evaluate import Log, Shop, at

AS_OF = datetime(2013, 3, 16, tzinfo=UTC)


def decision(as_of: datetime = AS_OF, rows: int = 2800) -> Decision:
    rng = np.random.default_rng(1)
    truth = rng.uniform(0.05, 0.75, rows)
    times = pd.to_datetime([as_of - timedelta(days=15) + timedelta(minutes=7 * i) for i in range(rows)], utc=True)
    pairs = pd.DataFrame(
        {
            "key": np.arange(rows).astype(str),
            "event_time": times,
            "known_at": times,
            "label": (rng.random(rows) < truth).astype(float),
            "champion": np.full(rows, 0.4),
            "challenger": truth,
        }
    )
    inputs = {"champion": "3", "challenger_snapshot": "0123456789abcdef"}
    return judge("churn", pairs, ShadowSettings(), as_of, inputs)


def test_both_models_the_interval_the_verdict_and_the_reason_are_told() -> None:
    made = decision()
    lines = dict(line.split(None, 1) for line in told(made.to_dict()).splitlines())
    assert lines["champion"].startswith("version 3 (log-loss 0.")
    assert lines["challenger"].startswith("fitted on snapshot 0123456789ab (log-loss 0.")
    last = made.details["path"][-1]
    assert f"between {last['lower']:+.5f} and {last['upper']:+.5f}" in told(made.to_dict())
    assert lines["verdict"] == "PASS"
    assert "retraining pays" in lines["reason"]


def test_too_few_requests_have_no_interval_and_say_what_is_missing() -> None:
    text = told(decision(rows=20).to_dict())
    assert "no interval yet" in text
    assert "180 labels and 6 blocks more are needed" in text


def test_the_smallest_gain_and_the_labels_still_needed_are_told() -> None:
    made = decision()
    lines = dict(line.split(None, 1) for line in told(made.to_dict()).splitlines())
    assert f"{made.details['detectable_gain']:.5f}" in lines["detectable"]
    assert lines["needed"] == "no more labels at the gain seen so far"
    short = decision(rows=900)
    assert short.details["labels_needed"] > 0
    assert f"{short.details['labels_needed']} labels more" in told(short.to_dict())


def test_what_became_of_the_other_requests_is_told() -> None:
    made = decision().to_dict()
    made["details"]["counts"] |= {"failed": 3, "missing_labels": 12, "late_labels": 0, "corrected_labels": 1}
    assert "; 3 failed, 12 without a label, 1 corrected" in told(made)


def test_every_challenger_is_told() -> None:
    made = decision().to_dict()
    made["details"]["challengers"] = [
        {"name": "short", "lookback_days": 28, "verdict": "PASS", "mean_gain": 0.0123},
        {"name": "long", "lookback_days": 365, "verdict": "ERROR", "mean_gain": None},
    ]
    text = told(made)
    assert "PASS: look-back of 28 days, +0.01230 a request" in text
    assert "ERROR: look-back of 365 days, no gain known" in text


def test_a_record_of_an_earlier_version_is_still_told() -> None:
    made = decision().to_dict()
    for name in ("labels_needed", "heading", "missing", "failed_loss"):
        del made["details"][name]
    assert "not foreseeable" in told(made)


def test_the_confidence_sequence_is_drawn_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "shadow.png"
    assert str(file) in drawn(decision().to_dict(), file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    made = decision(rows=0).to_dict()
    assert drawn(made, tmp_path / "shadow.png").startswith("no picture")
    assert not list(tmp_path.iterdir())


def test_the_latest_record_at_or_before_the_instant_is_shown() -> None:
    store = MemoryStore()
    for weeks in (0, 1):
        made = decision(AS_OF + timedelta(weeks=weeks))
        store.put(decision_key(made), made.to_json())
    assert recorded(store, "churn", AS_OF)["as_of"] == AS_OF.isoformat()
    assert recorded(store, "churn", AS_OF + timedelta(days=30))["as_of"] == (AS_OF + timedelta(weeks=1)).isoformat()
    with pytest.raises(NotFound, match="ask anew with --fresh"):
        recorded(store, "churn", AS_OF - timedelta(days=1))


SPEC = """\
name: shop
description: Who buys.
owners: ["team:shop"]
feature_set: shop
start: 2013-01-01T00:00:00Z
shadow: {days: 7, min_labels: 100}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop whose store, lineage and log are those of the stack in `.trimtab`."""
    folder = tmp_path / "models" / "shop"
    folder.mkdir(parents=True)
    (folder / "model.yaml").write_text(SPEC)
    found = Shop(folder)
    doors = SimpleNamespace(store=found.store, lineage=found.lineage, traffic=Log(found.store))
    for module, name, value in (
        (local, "read_addresses", None),
        (local, "stack_environment", {}),
        (environments, "enter", None),
        (environments, "ports", doors),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    return found


def test_a_fresh_evaluation_says_what_the_room_would_and_records_nothing(shop: Shop, tmp_path: Path) -> None:
    words = ["shadow", "shop", "--as-of", f"{at(58):%Y-%m-%d}", "--fresh", "--models", str(tmp_path / "models")]
    found = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == json.loads(shop.decide(58).to_json())
    assert shop.store.keys("decisions/") == []
    text = CliRunner().invoke(main, [*words, "--picture", str(tmp_path / "shadow.png")]).stdout
    lines = dict(line.split(None, 1) for line in text.splitlines())
    assert lines["shop"] == f"shadow as of {at(58).isoformat()}"
    assert lines["champion"].startswith("version 1 (log-loss ")
    assert (tmp_path / "shadow.png").exists()


def test_a_fresh_evaluation_of_no_model_names_those_there_are(shop: Shop, tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["shadow", "shopp", "--fresh", "--models", str(tmp_path / "models")])
    assert found.exit_code == 1
    assert "MODEL = 'shopp': is no model: there are shop" in found.output


def test_without_fresh_and_without_a_record_the_way_to_one_is_told(shop: Shop) -> None:
    found = CliRunner().invoke(main, ["shadow", "shop", "--as-of", f"{at(58):%Y-%m-%d}"])
    assert found.exit_code == 1
    assert "ask anew with --fresh" in found.output
