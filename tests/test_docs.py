"""The documents and examples: links lead somewhere, and what they show works. `make check` builds them."""

import ast
import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.test import Client

from docs.reference_pages import rest_page, settings_page
from teacher.teach import COMMANDS as COMMANDS_OF_TEACH
from teacher.teach import build_parser, main, parse_arguments
from tests.documents import PAGES, ROOT, blocks_of, commands_of, page_of, run_programs

FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
RUN_ELSEWHERE = {
    "README.md": "test_readme.py",
    "datasets.md": "test_readme.py",
    "demonstrations.md": "test_readme.py",
    "environments.md": "test_environments_page.py",
    "python.md": "test_readme.py",
    "wrapper.md": "here, but for what trains for minutes and asks people",
}
SHORTER = {"own-network.md": {"ask(pool, oracle, 100)": "ask(pool, oracle, 30)"}}


def test_every_option_is_on_the_page_of_settings() -> None:
    long_options = re.findall(r"--[a-z_.]+(?=[ ,\n])", build_parser().format_help())
    assert {option for option in long_options if option not in {"--help", "--preset"}} <= set(
        re.findall(r"`.*?(--[a-z_.]+)\b", settings_page())
    )


def test_requests_are_on_the_page_of_the_rest_interface() -> None:
    page = rest_page(Client().get("/api/schema/?format=json").json())
    assert "## `POST /api/v1/experiments/{name}/leases`" in page


def slug(heading: str) -> str:
    """The anchor that GitHub and MyST give a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    return {
        slug(heading) for heading in re.findall(r"^#+ (.*)", FENCED.sub("", page.read_text()), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Check links as GitHub resolves them; Sphinx checks the pages it generates."""
    links = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text()))
    for link in links:
        if re.match(r"[a-z]+:|(\.\./)?generated/", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_pictures_are_small_enough_to_load() -> None:
    for path in (ROOT / "docs" / "pictures").rglob("*.*"):
        assert path.stat().st_size < 500_000, path


def test_every_page_of_the_site_is_shown() -> None:
    """Under the name of its template, perhaps with what is special about it."""
    shown = re.findall(r"\(pictures/pages/([^)]+)\.webp\)", (ROOT / "docs" / "pages.md").read_text())
    assert sorted(shown) == sorted(path.stem for path in (ROOT / "docs" / "pictures" / "pages").iterdir())
    templates = (ROOT / "human_feedback_site" / "feedback" / "templates").rglob("*.html")
    whole = {path.stem for path in templates if "{% extends" in path.read_text()}
    assert len(whole) > 15
    assert whole <= {name.split("-")[0] for name in shown}


COMMANDS = {page: sorted(set(commands_of(page))) for page in PAGES}


def test_the_documents_show_commands() -> None:
    assert len({command for commands in COMMANDS.values() for command in commands}) > 40
    shown = {page.name for page, commands in COMMANDS.items() if commands}
    assert {"README.md", "gallery.md", "start.md", "deployment.md"} <= shown


@pytest.mark.parametrize("page", [page for page in PAGES if COMMANDS[page]], ids=lambda page: page.name)
def test_every_command_of_a_page_exists_and_takes_its_options(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS[page]:
        with subtests.test(command):
            check(command)


def check(command: str) -> None:
    subprocess.run(["bash", "-n"], input=command, text=True, check=True)
    words = shlex.split(re.split(r" [|>&;] ?", command)[0])
    if words[0] == "teach":
        check_teach(words[1:])
    elif words[0] == "make":
        check_make(words[1:])
    elif "manage.py" in words:
        check_manage(words[words.index("manage.py") + 1 :])
    elif words[1:2] == ["-m"]:
        assert words[2] in {"venv", "pip"} or importlib.util.find_spec(words[2]), command
    elif words[1:] and words[1].endswith(".py"):
        assert (ROOT / words[1]).exists(), command


def check_teach(arguments: list[str]) -> None:
    """Every option is known and its value fits; ``...`` stands for whatever a run needs."""
    if not arguments[0].startswith("-"):
        assert arguments[0] in COMMANDS_OF_TEACH
        return
    if "--resume" in arguments or "--help" in arguments or "--help-all" in arguments:
        return
    if "..." in arguments:
        arguments = [word for word in arguments if word != "..."] + "-p rl -e Pendulum-v1 -n any".split()
    assert parse_arguments(arguments).config.env_id in arguments


def check_make(words: list[str]) -> None:
    (target,) = [word for word in words if "=" not in word]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def check_manage(words: list[str]) -> None:
    """The command exists, here or in Django, and takes these options."""
    name, *arguments = words
    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(arguments)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in RUN_ELSEWHERE and blocks_of(page, "python")],
    ids=lambda page: page.name,
)
def test_every_program_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_programs(page, tmp_path, SHORTER.get(page.name))


def test_the_programs_about_the_wrapper_are_python_and_import_what_there_is() -> None:
    for program in blocks_of(page_of("wrapper"), "python"):
        tree = ast.parse(program)
        imports = (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
        exec("\n".join(map(ast.unparse, imports)), {})  # noqa: S102 (of this project's own page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_shows_is_python(page: Path) -> None:
    """Blocks that begin with the name of a file: ``# my_wishes.py``."""
    for block in blocks_of(page, ""):
        if re.match(r"# \w+\.py\n", block):
            ast.parse(block)


def test_hooks_before_a_commit_are_the_checks_of_make_check() -> None:
    """Each runs a program that the development set-up installs, and nothing is fetched for it."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    checks = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in recipe[1].splitlines()]
    hooks = [
        hook["entry"].removesuffix(" --force-exclude").removeprefix(".venv/bin/")
        for hook in repository["hooks"]
    ]
    assert hooks == checks
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert Path(sys.executable).with_name(Path(hook["entry"].split()[0]).name).exists()


PAGE = page_of("environments")
WALK, TOGETHER = blocks_of(PAGE, "python")


def test_the_environment_of_ones_own_is_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_walk.py").write_text(WALK)
    (command,) = [command for command in commands_of(PAGE) if "my_walk" in command]
    assert main([*shlex.split(command)[1:], *"-t 2048 -i 20".split()]) == 0
    assert list(tmp_path.glob("runs/*/walk/videos/*.mp4")), "it was drawn from a replay"


class ListGame(gym.Env[Any, Any]):
    def step(self, action: Any) -> Any:
        assert isinstance(action, list)
        return (0, 0), [1.0, 2.0], [True, False], [True, True], {}


def test_a_game_of_lists_becomes_one_of_numbers() -> None:
    found: dict[str, Any] = {}
    exec(TOGETHER, found)  # noqa: S102 (of this project's own page)
    _, reward, terminated, truncated, _ = found["Together"](ListGame()).step(np.array([1, 2]))
    assert (reward, terminated, truncated) == (3.0, False, True)


EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_every_example_runs_in_its_short_form(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, where the libraries are imported already; its folder is searched, as Python does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [str(program), "--short"])
    runpy.run_path(str(program), run_name="__main__")
    assert capfd.readouterr().out.strip()


def test_every_example_is_on_their_page() -> None:
    listed = re.findall(r"^\| \[[^\]]+\]\((\w+\.py)\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert listed == [program.name for program in PROGRAMS]
