"""The dashboard, the alerts and their page name metrics that the site and render workers have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client.values
import promql_parser
import pytest
import yaml
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from human_feedback_site.feedback.api.prometheus import exposition
from teacher.clips.exporter import Exporter
from teacher.clips.metrics import FAILURE_KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/monitoring.md").read_text()
RULES = yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
BOARD = json.loads((ROOT / "monitoring/grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
SHOWN = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [*SHOWN, *(rule["expr"] for rule in ALERTS)]
QUEUE_LENGTH = "rl_teacher_render_queue_length"  # needs a Redis: test_render_queue.py looks for it


def selectors_in(expression: str) -> set[str]:
    """The names of the metrics in an expression, which must be valid."""
    promql_parser.parse(expression)
    without_labels = re.sub(r"{[^}]*}", "", expression)
    return set(re.findall(r"\brl_teacher_\w+", without_labels))


@pytest.fixture
def exported(db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of all series of a site and a render worker, as an expression has them."""
    families = list(text_string_to_metric_families(exposition().decode()))
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(prometheus_client.values, "ValueClass", None)
    Exporter(FAILURE_KINDS)
    rendering = MultiProcessCollector(None).collect()  # type: ignore[no-untyped-call]
    yield names | {sample.name for each in rendering for sample in each.samples} | {QUEUE_LENGTH}
    prometheus_client.values.close_all_multiprocess_files()  # type: ignore[no-untyped-call]


def test_shown_metrics_are_exported(exported: set[str]) -> None:
    assert {name for each in EXPRESSIONS for name in selectors_in(each)} <= exported


def test_the_dashboard_shows_every_metric(exported: set[str]) -> None:
    shown = {name for each in SHOWN for name in selectors_in(each)}
    assert exported - shown == {"rl_teacher_render_seconds_sum"}


def test_the_page_lists_every_metric_and_every_kind_of_failure(exported: set[str]) -> None:
    listed = set(re.findall(r"`(rl_teacher_\w+)`", PAGE))
    assert listed == {re.sub("_seconds_(sum|count|bucket)$", "_seconds", name) for name in exported}
    (kinds,) = re.findall(r"by `kind`: (.*) \|", PAGE)
    assert re.findall(r"`(\w+)`", kinds) == list(FAILURE_KINDS)


def test_the_page_explains_every_alert() -> None:
    assert re.findall(r"^\| `([A-Z]\w+)` \|", PAGE.partition("these alerts")[2], re.MULTILINE) == [
        rule["alert"] for rule in ALERTS
    ]
    for rule in ALERTS:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description"}
        promql_parser.parse_duration(rule["for"])


def test_alerts_name_an_experiment_only_if_their_expression_does() -> None:
    for rule in ALERTS:
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named == ({"experiment"} if "by (experiment)" in rule["expr"] else set())


def test_a_wrong_expression_would_be_noticed() -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        selectors_in("sum(rl_teacher_labels_total")


def test_panels_have_places_names_and_a_source_of_their_own() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = [place for panel in BOARD["panels"] for place in places_of(panel["gridPos"])]
    assert len(set(taken)) == len(taken)
    assert all(x < 24 for x, _ in taken)
    (source, experiment) = BOARD["templating"]["list"]
    assert (source["type"], experiment["name"]) == ("datasource", "experiment")
    of_source = {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert all(each["datasource"] == of_source for each in (panel, *panel["targets"]))


def places_of(grid: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """The cells of the dashboard's grid that a panel takes."""
    for x in range(grid["x"], grid["x"] + grid["w"]):
        yield from ((x, y) for y in range(grid["y"], grid["y"] + grid["h"]))
