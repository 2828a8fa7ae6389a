"""Each image has what its role needs and no more, and the dashboard and alerts name metrics that exist."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import prometheus_client.values
import promql_parser
import pytest
import yaml
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from human_feedback_site.feedback.api.prometheus import exposition
from teacher.clips.metrics import FAILURE_KINDS, Exporter

ROOT = Path(__file__).parents[2]
ROLES = ("site", "render", "trainer")
SCRIPTS = sorted(path for path in (ROOT / "docker").iterdir() if path.suffix != ".txt")


def requirements(role: str) -> set[str]:
    """The bare names of a role's distributions, those of the files it includes among them."""
    names: set[str] = set()
    for line in (ROOT / f"docker/requirements-{role}.txt").read_text().splitlines():
        if included := re.fullmatch(r"--requirement requirements-(\w+)\.txt", line):
            names |= requirements(included[1])
        elif not line.startswith("#"):
            names.add(line)
    return names


def extras_by_name(requirements: set[str]) -> dict[str, set[str]]:
    """``celery[redis,s3]>=5.7`` as celery -> redis, s3; merged where a name comes twice."""
    found: dict[str, set[str]] = {}
    for requirement in requirements:
        name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,-]+)\])?[^\[]*", requirement).groups()  # type: ignore[union-attr]
        found.setdefault(name, set()).update((extras or "").split(",") if extras else ())
    return found


def ignored(path: str) -> bool:
    """Whether ``.dockerignore`` keeps a top-level file or folder from the builder: the last match decides."""
    decision = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch(path, line.removeprefix("!")):
            decision = not line.startswith("!")
    return decision


def test_hadolint_finds_nothing_with_no_rule_switched_off() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [str(hadolint), "--config", "/dev/null", "--disable-ignore-pragma", "Dockerfile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_copied_files_exist_in_the_build_context(stages: dict[str, Any]) -> None:
    copied = {
        name
        for stage in stages.values()
        for instruction in stage.instructions
        if instruction.keyword == "COPY" and not instruction.rest.startswith("--from=")
        for name in instruction.rest.split()[:-1]
    }
    assert {"manage.py", "teacher", "human_feedback_site", "docker/health-worker"} <= copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert [name for name in copied if ignored(name.split("/")[0])] == []


def test_nothing_private_or_large_reaches_the_builder() -> None:
    present = {path.name for path in ROOT.iterdir()} | {".env", ".git", ".venv", "runs", "state"}
    sent = {name for name in present if not ignored(name)}
    assert sent == {
        *("agents", "teacher", "human_feedback_site", "docker"),
        *("constraints.txt", "manage.py", "pyproject.toml", "setup.py", "README.md", "LICENSE"),
    }


@pytest.mark.parametrize("role", ROLES)
def test_no_image_runs_as_root(stages: dict[str, Any], role: str) -> None:
    users = [step.rest for step in stages[role].instructions if step.keyword == "USER"]
    assert users == ["10001:10001"]
    steps_after = stages[role].instructions[-2:]
    assert all(step.keyword in {"USER", "EXPOSE", "CMD", "ENTRYPOINT"} for step in steps_after)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_can_be_run(script: Path) -> None:
    assert script.stat().st_mode & 0o111 == 0o111
    interpreter = script.read_text().splitlines()[0].split()[-1].removeprefix("#!")
    checks = {"bash": ["bash", "-n"], "/bin/sh": ["sh", "-n"], "python3": [sys.executable, "-m", "ast"]}
    done = subprocess.run([*checks[interpreter], script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_roles_need_nothing_that_the_project_does_not_require() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = extras_by_name(set(project["dependencies"]))
    for extra in ("metrics", "parquet", "sso"):
        wanted |= extras_by_name(set(project["optional-dependencies"][extra]))
    assert extras_by_name(requirements("trainer")) == wanted
    assert "pyarrow" in requirements("site")
    for role in ("site", "render"):
        needed = extras_by_name(requirements(role))
        assert needed.keys() < wanted.keys()
        assert all(extras <= wanted[name] for name, extras in needed.items())
    assert not {"torch", "gymnasium"} & requirements("site")
    assert not {"torch", "django"} & requirements("render")


def test_every_distribution_is_pinned() -> None:
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(extras_by_name(requirements("trainer"))) <= pinned


def test_opengl_comes_from_the_packages_that_make_installs() -> None:
    make, image = (ROOT / "Makefile").read_text(), (ROOT / "docker/install-gl").read_text()
    wanted = re.findall(r"^GL_PACKAGES := (.*)$", make, re.MULTILINE)
    installed = re.findall(r"^apt-get install .* --no-install-recommends (.*)$", image, re.MULTILINE)
    assert installed == wanted


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
    Exporter()
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
    rows = re.findall(r"^\| (`[A-Z].*?) \|", PAGE.partition("these alerts")[2], re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [rule["alert"] for rule in ALERTS]
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
