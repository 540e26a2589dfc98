import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import pipelines
from assets.decision import Decision, Evidence
from assets.door import decision_key
from assets.verdict import Verdict
from pipelines import environments, local
from pipelines.cli import main
from pipelines.commands_drift import latest, page
from resources.errors import NotFound
from tests.fakes import MemoryStore

END = datetime(2024, 1, 12, tzinfo=UTC)


def decision(champion: str = "3") -> Decision:
    feature = {"feature": "temp", "distance": 0.34, "weight": 0.6, "p_value": 1e-9, "null_share": 0.02, "named": True}
    quiet = feature | {"feature": "hour", "distance": 0.01, "named": False}
    return Decision(
        "churn", "drift", END, "1 of the last 1 day above",
        (
            Evidence("inputs", Verdict.FAIL, "1 of the last 1 day above: temp .34", 0.21, 0.08),
            Evidence("harm", Verdict.INCONCLUSIVE, "8 labels of the 200 needed"),
            Evidence("joint", Verdict.INCONCLUSIVE, "features moved together", 0.7, 0.55, decides=False),
        ),
        {"champion": champion},
        {"features": [feature, quiet], "estimated": {"brier": 0.15, "auc": 0.7}, "brier": None},
    )  # fmt: skip


def test_the_page_names_verdict_reason_statistic_threshold_and_feature() -> None:
    said = "\n".join(page(decision().to_dict()))
    assert "churn, as of 2024-01-12T00:00:00+00:00: FAIL" in said
    assert "0.21 against 0.08" in said
    assert "8 labels of the 200 needed" in said
    assert "  ????  harm" in said
    assert "  hint  joint" in said
    lines = said.splitlines()
    assert [line.endswith("*") for line in lines if line.startswith(("  temp", "  hour"))] == [True, False]
    assert "0.15 if the answers are true (blind to concept drift); no label yet" in said


def test_of_several_records_the_newest_champions_is_shown() -> None:
    store = MemoryStore()
    for champion in ("10", "9"):
        store.put(decision_key(decision(champion)), decision(champion).to_json())
    assert latest(store, "churn", END) == json.loads(decision("10").to_json())


def test_a_partition_without_a_check_says_how_to_get_one() -> None:
    with pytest.raises(NotFound, match="trimtab launch watch churn"):
        latest(MemoryStore(), "churn", END)


def test_without_a_stack_it_is_one_line(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["drift", "churn", "--partition", "2024-01-05", "--home", str(tmp_path)])
    assert found.exit_code == 1
    assert "no stack was started here" in found.output


def test_json_is_the_record_and_the_page_is_of_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = MemoryStore(), replace(decision(), model="flight_delay", as_of=datetime(2013, 2, 8, tzinfo=UTC))
    store.put(decision_key(made), made.to_json())
    models = SimpleNamespace(models=Path(pipelines.__file__).parent / "models")
    for module, name, value in (
        (local, "read_addresses", None),
        (local, "stack_environment", {}),
        (environments, "enter", models),
        (environments, "ports", SimpleNamespace(store=store)),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)

    def asked(*words: str) -> Result:
        return CliRunner().invoke(main, ["drift", "flight_delay", "--partition", *words])

    found = asked("2013-02-01", "--json")
    assert (found.exit_code, json.loads(found.output)) == (0, json.loads(made.to_json()))
    assert asked("2013-02-01").output == "\n".join(page(made.to_dict())) + "\n"
    for words, said in ((["2013-02-02"], "none of flight_delay"), (["2013-02-08"], "launch watch flight_delay")):
        other = asked(*words)
        assert other.exit_code != 0
        assert said in other.output


def test_the_page_says_how_often_alarms_really_came() -> None:
    record = decision().to_dict()
    spacing = {"count": 1, "watched_days": 7.0, "days_between": None, "budget_per_year": 3.0, "open": END.isoformat()}
    said = list(page(record | {"details": record["details"] | {"alarms": spacing}}))
    assert said[-1] == "  1 alarm in 7 days; budget: 3 false ones a year; open since 2024-01-12T00:00"
