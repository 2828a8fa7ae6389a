"""The documents: they build without a warning, their links lead somewhere, and what they show can be done."""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from teacher.teach import COMMANDS as COMMANDS_OF_TEACH
from teacher.teach import build_parser, parse_arguments

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
GENERATED = ROOT / "docs" / "generated"
RUN_ELSEWHERE = {
    "README.md",
    "datasets.md",
    "demonstrations.md",
    "python.md",
}  # by test_readme.py, which looks at what comes out
NOT_RUN = {"wrapper.md": "it asks people, and trains for minutes"}  # compiled, and what it imports imported
ASSIGNMENTS = re.compile(r"^(?:[A-Z_]+=\S+ )+")


@pytest.mark.timeout(900)
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Links to pages, headings and files among them; written to nowhere, which takes half the time."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--builder",
        "dummy",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
    ]
    built = subprocess.run([*command, ROOT / "docs", tmp_path], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    settings = (GENERATED / "settings.md").read_text()
    long_options = re.findall(r"--[a-z_.]+(?=[ ,\n])", build_parser().format_help())
    assert {option for option in long_options if option not in {"--help", "--resume", "--preset"}} <= set(
        re.findall(r"`(--[a-z_.]+)`", settings)
    )
    assert "## `POST /api/v1/experiments/{name}/leases`" in (GENERATED / "rest.md").read_text()


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
    """As GitHub shows the pages; those that Sphinx generates are left to its build."""
    links = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text()))
    for link in links:
        if re.match(r"[a-z]+:|generated/", link):
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


def blocks_of(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands_of(page: Path) -> Iterator[str]:
    """The lines of its blocks that begin with a program of ours, without variables and comments."""
    for block in [*blocks_of(page, ""), *blocks_of(page, "(?:sh|bash|console)[^\n]*")]:
        for line in block.replace("\\\n", " ").splitlines():
            command = ASSIGNMENTS.sub("", line.strip().removeprefix("$ "))
            if re.match(r"(teach|make|python\d?|docker compose) ", command):
                yield re.sub(r"\s#.*", "", command)


COMMANDS = sorted({(page.name, command) for page in PAGES for command in commands_of(page)})


def test_the_documents_show_commands() -> None:
    assert len(COMMANDS) > 40
    assert {"README.md", "gallery.md", "start.md", "deployment.md"} <= {page for page, _ in COMMANDS}


@pytest.mark.parametrize("command", sorted({command for _, command in COMMANDS}))
def test_every_command_is_one_that_exists(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
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
    given = parse_arguments(arguments)[0]
    assert given.env_id


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
def test_every_program_runs(page: Path, tmp_path: Path) -> None:
    """A page's programs one after the other in one process, or where that is listed above, their imports."""
    program = "\n".join(blocks_of(page, "python"))
    tree = ast.parse(program)
    if page.name in NOT_RUN:
        imports = (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
        program = "\n".join(map(ast.unparse, imports))
    command = [sys.executable, "-W", "error", "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


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
    hooks = [hook["entry"].removesuffix(" --force-exclude").split("/")[-1] for hook in repository["hooks"]]
    assert hooks == checks
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert Path(sys.executable).with_name(hook["entry"].split()[0].split("/")[-1]).exists()
