"""The documents and examples: links lead somewhere, and what they show works. `make check` builds them."""

import ast
import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.test import Client
from gymnasium.spaces import Box, Dict, flatten
from PIL import Image

from docs.reference_pages import rest_page, settings_page
from human_feedback_site.manage import NAMES
from teacher.cli.site import COMMANDS as COMMANDS_OF_SITE
from teacher.data.demonstrations import load_demonstrations
from teacher.settings.config_files import load_config
from teacher.settings.teachers import ErrorModel
from teacher.settings.unused import UNUSED
from teacher.teach import COMMANDS as COMMANDS_OF_TEACH
from teacher.teach import build_parser, main, parse_arguments
from teacher.training import warmstart
from tests.conftest import MakeOnce
from tests.documents import PAGES, README, ROOT, blocks_of, commands_of, page_of, run_programs
from tests.waiting import completed

FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# The programs of these have tests of their own below, in a short form.
RUN_BELOW = {"README.md", "datasets.md", "demonstrations.md", "environments.md", "python.md", "wrapper.md"}


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


def test_the_documents_are_short() -> None:
    """At most 30,000 words: say a thing once, and link to it."""
    pages = [page for page in PAGES if page.parent.name in {"docs", "benchmarks"}]
    pages += [README, ROOT / "CONTRIBUTING.md"]
    assert sum(len(page.read_text().split()) for page in pages) <= 30_000


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
    page: Path, here: Path, subtests: pytest.Subtests
) -> None:
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
        if arguments[0] == "site" and arguments[1] in COMMANDS_OF_SITE:
            check_manage(arguments[1:])
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
    name = NAMES.get(name, name)
    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(arguments)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in RUN_BELOW and blocks_of(page, "python")],
    ids=lambda page: page.name,
)
def test_every_program_runs(page: Path, here: Path) -> None:
    run_programs(page, here)


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
    recipes = [
        re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for target in ("check", "quick")
    ]
    checks, quick = (
        [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in recipe[1].splitlines()]
        for recipe in recipes
        if recipe
    )
    assert quick[:-1] == checks[:-1]  # documents take too long
    folders = re.findall(r"\btests/\S+", (ROOT / "Makefile").read_text())
    assert all((ROOT / folder).exists() for folder in folders)
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


def test_the_environment_of_ones_own_is_taught(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    (here / "my_walk.py").write_text(WALK)
    (command,) = [command for command in commands_of(PAGE) if "my_walk" in command]
    assert main([*shlex.split(command)[1:], *"-t 2048 -i 20".split()]) == 0
    assert list(here.glob("runs/*/walk/videos/*.mp4")), "it was drawn from a replay"


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
    program: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, where the libraries are imported already; its folder is searched, as Python does."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [str(program), "--short"])
    runpy.run_path(str(program), run_name="__main__")
    assert capfd.readouterr().out.strip()


def test_every_example_is_on_their_page() -> None:
    listed = re.findall(r"^\| \[[^\]]+\]\((\w+\.py)\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert listed == [program.name for program in PROGRAMS]


README_COMMANDS = list(commands_of(README))
OF_TEACHERS = list(commands_of(page_of("teachers")))
ONE_ROLLOUT = "-t 1 -i 20 -l 20 -V".split()


def shortened(command: str) -> list[str]:
    """Arguments of ``teach``, to be done sooner; answers of people are made from the true reward."""
    arguments = shlex.split(command)[1:]
    if arguments[0] == "record":
        return [*arguments, "--episodes", "2"]
    if "human" not in arguments:
        return [*arguments, *ONE_ROLLOUT] if "rl" not in arguments else [*arguments, "-t", "1", "-V"]
    for option in UNUSED["synth"]:
        if f"--{option}" in arguments:
            at = arguments.index(f"--{option}")
            del arguments[at : at + 2]
    return [*arguments, *ONE_ROLLOUT, "-p", "synth"]


@pytest.fixture(scope="module")
def folder(make_once: MakeOnce) -> Path:
    """Run the README's commands, except the one that needs another machine."""
    return make_once("reader", give_commands)


def give_commands(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(warmstart, "CLONING_EPOCHS", 10)
        for command in README_COMMANDS:
            if command.startswith("teach ") and "--site_url" not in command:
                assert main(shortened(command)) == 0, command


def test_the_readme_shows_the_commands_that_matter() -> None:
    assert README_COMMANDS[:2] == ["make demo", "make test"]
    assert {"-p human", "-p rl", "-p synth"} <= set(re.findall(r"-p \w+", "\n".join(README_COMMANDS)))


def test_every_run_of_the_readme_is_saved(folder: Path) -> None:
    names = {path.parent.name for path in folder.glob("runs/ShortHopper-v1/*/checkpoint.npz")}
    assert names == {"backflip", "sanity", "synth", "clumsy", "flip", "gait", "gait2"}


def test_a_run_on_the_true_reward_is_an_expert_to_begin_from(folder: Path) -> None:
    assert len(load_demonstrations(folder / "expert.npz").episode_returns) == 2
    runs = folder / "runs" / "ShortHopper-v1"
    gait, gait2 = (load_config(runs / name)[0] for name in ("gait", "gait2"))
    assert (gait.demonstrations, gait2.policy) == (str(folder / "expert.npz"), str(runs / "sanity"))


def test_learned_policy_is_filmed(
    folder: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command of the page on teachers, of the run that it shares with the README."""
    (command,) = [command for command in OF_TEACHERS if "scripts/film.py" in command]
    _, program, run_dir, *options = shlex.split(command)
    monkeypatch.setattr(
        "sys.argv", [program, str(folder / run_dir), *options, "--episodes", "2", "--steps", "30"]
    )
    runpy.run_path(str(ROOT / program), run_name="__main__")
    said = capsys.readouterr().out
    assert "teacher.behaviors:backflip" in said
    assert "backflips per episode" in said
    with Image.open("flip.gif") as film:
        assert getattr(film, "n_frames", 1) == 10


@pytest.mark.parametrize("command", [command for command in README_COMMANDS if command.startswith("make ")])
def test_every_make_target_in_the_readme_starts_its_program(command: str) -> None:
    result = completed([*shlex.split(command), "--dry-run", "--always-make"], cwd=ROOT)
    assert result.returncode == 0, result.stderr
    started = {"demo": "scripts/demo.py", "test": "pytest", "stack": "-m stack"}
    assert started[command.split()[1]] in result.stdout


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_nothing_is_left_to_fill_in() -> None:
    assert "<!--" not in README.read_text()


def test_the_pictures_exist() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text()):
        assert (ROOT / path).stat().st_size > 1000, path


def test_the_python_program_runs(here: Path) -> None:
    shorter = {"n_labels=40": "n_labels=20", "num_timesteps=20_000": "num_timesteps=1, pretrain_iters=20"}
    run_programs(README, here, shorter)


def test_the_programs_about_demonstrations_run(here: Path) -> None:
    run_programs(page_of("demonstrations"), here, {"n_epochs=20": "n_epochs=2"})
    assert (here / "returns.png").exists()


def test_the_programs_about_python_run_and_learn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer than 40 answers: with more, a predictor tries two kinds of features first."""
    shorter = {
        "n_labels=60": "n_labels=20",
        "num_timesteps=6_144": "num_timesteps=1",
        "range(120)": "range(20)",
        "n_labels=200": "n_labels=30",
        "select_pairs(pool, 40,": "select_pairs(pool, 39,",
    }
    run_programs(page_of("python"), here, shorter)
    *_, last = capsys.readouterr().out.splitlines()
    accuracy, correlation = map(float, last.split())
    assert accuracy > 0.7
    assert correlation > 0.8
    for name in ("look", "own"):
        assert (here / "runs" / "teacher-ShortReacher-v1" / name / "checkpoint.npz").exists()


def test_the_program_about_datasets_learns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_programs(page_of("datasets"), here, {"oracle, 60": "oracle, 39"})
    accuracy, loss, calibration_error = map(float, capsys.readouterr().out.split())
    assert accuracy > 0.8
    assert loss < 0.55
    assert calibration_error < 0.3


def test_nested_observations_of_minari_are_flattened_as_their_page_says(tmp_path: Path) -> None:
    """Stand in for Minari: spaces, and episodes with a dict of arrays each."""
    (program,) = [one for one in blocks_of(page_of("datasets"), "python") if "def flattened" in one]
    (tmp_path / "flat.py").write_text(program)
    made = runpy.run_path(str(tmp_path / "flat.py"))
    here, goal = Box(-1, 1, (2, 2)), Box(-1, 1, (3,))
    space = Dict({"here": here, "goal": goal})
    states = [space.sample() for _ in range(5)]
    episode = SimpleNamespace(
        observations={name: np.stack([state[name] for state in states]) for name in ("here", "goal")},
        actions=np.zeros((4, 1)),
        rewards=np.arange(4.0),
        terminations=np.array([False, False, False, True]),
    )
    dataset = SimpleNamespace(
        observation_space=space, action_space=Box(-1, 1, (1,)), iterate_episodes=lambda: iter([episode])
    )
    (flat,) = made["flattened"](dataset)
    assert np.array_equal(flat.all_observations, [np.asarray(flatten(space, state)) for state in states])
    assert flat.terminated
    assert made["flat_spaces"](dataset)[0].shape == (7,)


def test_a_teacher_of_ones_own_is_accepted(here: Path) -> None:
    (command,) = [command for command in OF_TEACHERS if "my_wishes" in command]
    (wishes,) = [
        block for block in blocks_of(page_of("teachers"), "") if block.startswith("# my_wishes.py\n")
    ]
    (here / "my_wishes.py").write_text(wishes)
    assert main(shortened(command)) == 0


def test_every_part_of_a_teacher_is_on_its_page() -> None:
    text = page_of("teachers").read_text()
    listed = {row.partition(":")[0] for row in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)}
    assert listed == {"oracle", "module", *(field.name for field in fields(ErrorModel))} - {"function"}


RECORD = 'printf "%s\\n" "$*" >> {here}/commands; exit "${{STATUS:-0}}"'


@pytest.fixture
def recorded(here: Path) -> Callable[..., list[str]]:
    """Run a script with programs that only write down what they are given, and return it."""
    for name, line in {
        "teach": RECORD,
        "srun": 'shift; exec teach "$@"',
        "scontrol": 'echo scontrol "$@" >> {here}/commands',
        "nproc": "echo 2",
    }.items():
        (here / name).write_text(f"#!/bin/sh\n{line.format(here=here)}\n")
        (here / name).chmod(0o755)

    def run(command: list[str], status: int = 0, **variables: str) -> list[str]:
        (here / "commands").write_text("")
        environment = {"PATH": f"{here}:/usr/bin:/bin", "STATUS": str(status), **variables}
        assert subprocess.run(command, check=False, env=environment, cwd=here).returncode == status
        return (here / "commands").read_text().splitlines()

    return run


def seed_of(line: str) -> int:
    return parse_arguments(shlex.split(line)).config.seed


def test_seeds_on_one_machine_are_runs_of_their_own(recorded: Callable[..., list[str]]) -> None:
    (script,) = blocks_of(page_of("sweeps"), "sh")
    lines = recorded(["sh", "-c", script])
    assert sorted(map(seed_of, lines)) == list(range(1, 17))
    assert len({parse_arguments(shlex.split(line)).config.name for line in lines}) == 16


def test_an_array_of_slurm_resumes_what_was_stopped(recorded: Callable[..., list[str]], here: Path) -> None:
    (script,) = blocks_of(page_of("sweeps"), "bash")
    variables = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "5"}
    start, requeue = recorded(["bash", "-c", script], 130, **variables)
    assert seed_of(start) == 5
    assert requeue == "scontrol requeue 70_5"
    run = parse_arguments(shlex.split(start)).config.run_dir
    (here / run).mkdir(parents=True)
    (here / run / "config.json").touch()
    assert recorded(["bash", "-c", script], **variables) == [f"--resume {run}"]


def test_an_agent_of_wandb_passes_settings(recorded: Callable[..., list[str]]) -> None:
    (sweep,) = map(yaml.safe_load, blocks_of(page_of("sweeps"), "yaml"))
    *command, args = sweep["command"]
    assert args == "${args}"
    given = [f"--{name}={each['values'][-1]}" for name, each in sweep["parameters"].items()]
    (line,) = recorded([*command, *given])
    config = parse_arguments(shlex.split(line)).config
    assert (config.seed, config.reward.members, config.track) == (3, 9, "wandb")
