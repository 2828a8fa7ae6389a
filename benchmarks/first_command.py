"""Survey of whether a first command trains, on the environments of Gymnasium, MiniGrid and Atari.

For each environment, runs ``teach -p synth -e ENV -n x -l 20 -L 10 -t 4e3`` in a terminal, and the wrapper
over 4,000 random steps with the same number of labels. If ``teach`` asks whether to run a corrected command,
Enter is pressed. If the wrapper is refused, it is corrected once with the arguments that the error message
names. Covers only the newest versions, and only the first ten Atari games by name. Each result is a line of
the results file; environments that are already in the file are skipped.

    python -m benchmarks.first_command --results benchmarks/first_command.jsonl
    python -m benchmarks.first_command --show --docs page.md

An environment takes a few seconds on one core, or many minutes with image observations; ``--seconds 300``
stops each try after five minutes, and ``--processes 2`` tries two at a time.
"""

import argparse
import contextlib
import importlib
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym

from benchmarks.results import append, load

SIDES = ("teach", "wrapper")
RESULTS = Path(__file__).with_suffix(".jsonl")
STEPS, LABELS, FIRST_LABELS = 4000, 20, 10
SECONDS = 4 * 3600
"""Default timeout of one try in seconds."""
GAMES = 10
_VERSION = re.compile(r"(?P<name>.+)-v(?P<version>\d+)")
_COMPATIBILITY = re.compile(r"GymV\d+Environment")
_SEGMENTS = re.compile(r"segments of ([\d,]+) step", re.IGNORECASE)
_SAID = 2000
_QUESTION = "Run this instead? [Y/n] "
_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def environments() -> list[str]:
    """Return environment IDs for ``teach -e``: Gymnasium's, MiniGrid's, then the slow image-based ones."""
    importlib.import_module("minigrid")
    gym.register_envs(importlib.import_module("ale_py"))
    ids = newest([env_id for env_id in gym.registry if not _COMPATIBILITY.match(env_id)])
    grids = [f"minigrid:{env_id}" for env_id in ids if env_id.startswith("MiniGrid-")]
    games = [f"ale_py:{env_id}" for env_id in ids if env_id.startswith("ALE/")]
    own = [env_id for env_id in ids if _is_own(env_id)]
    slow = [env_id for env_id in own if env_id.startswith("CarRacing")]
    return [*(env_id for env_id in own if env_id not in slow), *grids, *slow, *games[:GAMES]]


def _is_own(env_id: str) -> bool:
    """Return True if the environment is part of Gymnasium itself."""
    return "gymnasium.envs." in str(gym.spec(env_id).entry_point)


def newest(env_ids: Sequence[str]) -> list[str]:
    """Return the newest version of each environment, sorted by name."""
    versions: dict[str, int] = {}
    for env_id in env_ids:
        match = _VERSION.fullmatch(env_id)
        if match:
            versions[match["name"]] = max(int(match["version"]), versions.get(match["name"], 0))
    return [f"{name}-v{version}" for name, version in sorted(versions.items())]


def try_side(env_id: str, side: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Try the first command, then the suggested correction if it is refused; return the result line."""
    started = time.monotonic()
    tries = _tried(_teach_line(env_id) if side == "teach" else _wrapper_line(env_id, {}), seconds)
    if side == "wrapper" and tries[0]["status"] and (again := _corrected(env_id, tries[0]["said"])):
        tries += _tried(again, seconds)
    return {
        "env_id": env_id,
        "side": side,
        "tries": tries,
        "outcome": outcome_of(tries),
        "seconds": round(time.monotonic() - started, 1),
    }


def outcome_of(tries: Sequence[Mapping[str, Any]]) -> str:
    """Return ``trains``, ``corrected`` (trains once corrected), ``absent``, ``refused`` or ``failed``.

    If ``teach`` was stopped while it trained, it counts as training.
    """
    last = tries[-1]
    if "No module named" in tries[0]["said"]:
        return "absent"
    if last["status"] == 0 or was_stopped(last):
        return "corrected" if len(tries) > 1 else "trains"
    return "refused" if last["status"] == 2 and "Traceback" not in last["said"] else "failed"


def was_stopped(one: Mapping[str, Any]) -> bool:
    """Return True if a try was stopped by its timeout after ``teach`` had started to train."""
    return one["status"] == -signal.SIGKILL and "; run directory " in one["said"]


def _teach_line(env_id: str) -> list[str]:
    return ["-m", "teacher", *f"-p synth -e {env_id} -n x -l {LABELS} -L {FIRST_LABELS} -t 4e3".split()]


def _wrapper_line(env_id: str, settings: Mapping[str, Any]) -> list[str]:
    return ["-m", "benchmarks.first_command", "--wrap", env_id, json.dumps(settings)]


def _corrected(env_id: str, said: str) -> list[str] | None:
    """Return the wrapper's command with what an error message suggests, or None if it suggests nothing."""
    settings: dict[str, Any] = {}
    if match := re.search(r'FixedHorizon\(env, "(\w+)"', said):
        settings["fixed_horizon"] = match[1]
    if match := re.search(r"make the environment with (\w+)=(\w+)", said):
        settings = {"env_kwargs": {match[1]: match[2] == "True"}}
    if match := re.search(r"pass segment_length=(\d+)", said):
        settings["segment_length"] = int(match[1])
    if match := re.search(r"pass obs_transform_func=([\w.]+)", said):
        settings["obs_transform_func"] = match[1]
    return _wrapper_line(env_id, settings) if settings else None


def _tried(arguments: list[str], seconds: float) -> list[dict[str, Any]]:
    """Run Python with these arguments on a terminal, in a temporary folder; answer a question with Enter.

    Return the exit status and last output; if there was a question, those of the first command and those of
    the corrected one.
    """
    with tempfile.TemporaryDirectory() as folder:
        status, said = _on_terminal([sys.executable, *arguments], folder, seconds)
    for place in (str(Path(__file__).parents[1]), sys.prefix, folder):
        said = said.replace(place, "...")
    command = shlex.join(arguments).replace("-m teacher ", "teach ", 1)
    refusal, asked, rest = said.partition(_QUESTION)
    if not asked:
        return [_one_try(command, status, said)]
    corrected = refusal.strip().splitlines()[-1].strip()
    return [_one_try(command, 2, refusal), _one_try(corrected, status, rest)]


def _one_try(command: str, status: int, said: str) -> dict[str, Any]:
    segments = _SEGMENTS.findall(said)
    return {
        "command": command,
        "status": status,
        "segment": int(segments[-1].replace(",", "")) if segments else None,
        "said": said.strip()[-_SAID:].strip(),
    }


def _on_terminal(words: list[str], folder: str, seconds: float) -> tuple[int, str]:
    """Run a program on a pseudo-terminal and return its exit status and output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "SDL_VIDEODRIVER": "dummy",
        "TERM": "dumb",
        "COLUMNS": "300",
    }
    ours, its = pty.openpty()
    program = subprocess.Popen(
        words, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    said, asked, deadline = b"", False, time.monotonic() + seconds
    with contextlib.suppress(OSError):  # EIO at the end of the output
        while select.select([ours], [], [], max(0, deadline - time.monotonic()))[0]:
            said += os.read(ours, 65536)
            if not asked and _QUESTION.encode() in said:
                asked = bool(os.write(ours, b"\n"))
    if time.monotonic() >= deadline:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # the whole process group, including renderers
        said += f"\ntimed out after {seconds:,} s".encode()
    os.close(ours)
    return program.wait(), _ESCAPES.sub("", said.decode(errors="replace").replace("\r\n", "\n"))


def wrap(env_id: str, settings: dict[str, Any]) -> int:
    """Take random steps in the wrapper; return 0 if all labels were given and a predictor was trained."""
    import ale_py  # noqa: PLC0415 - only needed here
    import minigrid  # noqa: F401, PLC0415

    from teacher import FixedHorizon, HumanPreferencesEnvWrapper  # noqa: PLC0415 - importing torch takes seconds
    from teacher.errors import TeacherError  # noqa: PLC0415

    gym.register_envs(ale_py)
    env = gym.make(env_id.rpartition(":")[2], **settings.pop("env_kwargs", {}))
    if filling := settings.pop("fixed_horizon", None):
        limit = None if env.spec is None else env.spec.max_episode_steps
        env = FixedHorizon(env, filling, limit or 1000)
    if name := settings.pop("obs_transform_func", None):
        module, _, function = name.rpartition(".")
        settings["obs_transform_func"] = getattr(importlib.import_module(module), function)
    labels = {"n_prefs": LABELS, "n_initial_prefs": FIRST_LABELS, "total_timesteps": STEPS}
    try:
        wrapped = HumanPreferencesEnvWrapper(env, background=False, **labels, **settings)
    except TeacherError as error:
        print(error)
        return error.exit_status
    with contextlib.closing(wrapped):
        env.action_space.seed(1)
        wrapped.reset(seed=1)
        for _ in range(STEPS):
            *_, terminated, truncated, _ = wrapped.step(env.action_space.sample())
            if terminated or truncated:
                wrapped.reset()
        trainer = wrapped.trainer
        print(f"segments of {trainer.config.segment_steps} steps; {trainer.answers} of {LABELS} labels")
        return 0 if wrapped.using_reward_from_predictor and trainer.answers == LABELS else 1


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as a Markdown table; MiniGrid environments with equal results share a row."""
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        cells.setdefault(result["env_id"], {})[result["side"]] = cell_of(result)
    rows: dict[tuple[str, ...], list[str]] = {}
    for env_id, by_side in cells.items():
        package = env_id.partition(":")[0] if ":" in env_id else ""
        shared = package if package == "minigrid" else env_id
        rows.setdefault((shared, *(by_side.get(side, "") for side in SIDES)), []).append(env_id)
    lines = ["| environment | " + " | ".join(SIDES) + " |", "|" + " --- |" * (1 + len(SIDES))]
    for (_, *outcomes), env_ids in rows.items():
        name = " ".join(f"`{env_id.rpartition(':')[2]}`" for env_id in env_ids)
        lines.append(f"| {name} | " + " | ".join(outcomes) + " |")
    return "\n".join(lines)


def cell_of(result: Mapping[str, Any]) -> str:
    """Return the text of a table cell for one result."""
    last, outcome = result["tries"][-1], result["outcome"]
    segment = f", segments of {last['segment']}" if last["segment"] else ""
    if was_stopped(last):
        segment += f"; {last['said'].splitlines()[-1]}"
    if outcome == "absent":
        return "not installed"
    if outcome == "trains":
        return f"trains{segment}"
    if outcome == "corrected":
        return f"trains with {_added(result)}{segment}"
    said = last["said"].splitlines()[-1] if last["said"] else ""
    return f"{outcome}: {_shortened(said)}"


def _added(result: Mapping[str, Any]) -> str:
    """Return the arguments that the correction added."""
    if result["side"] == "wrapper":
        settings = json.loads(shlex.split(result["tries"][-1]["command"])[-1])
        flat = {**settings.pop("env_kwargs", {}), **settings}
        return " ".join(f"`{name}={value!r}`" for name, value in flat.items())
    first, second = (shlex.split(one["command"]) for one in result["tries"])
    return f"`{shlex.join(second[len(first) :])}`"


def _shortened(said: str, most: int = 160) -> str:
    said = re.sub(r"\s+", " ", said).replace("|", "/")
    return said if len(said) <= most else f"{said[:most]} ..."


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown list that counts the outcomes of each side."""
    lines = []
    for side in SIDES:
        outcomes = [result["outcome"] for result in results if result["side"] == side]
        counts = ", ".join(
            f"{number} {words}"
            for one, words in (
                ("trains", "train"),
                ("corrected", f"train after {'Enter' if side == 'teach' else 'the suggested correction'}"),
                ("refused", "are refused"),
                ("absent", "are not installed"),
                ("failed", "fail"),
            )
            if (number := outcomes.count(one))
        )
        lines.append(f"- **{side}**: of {len(outcomes)} environments {counts}.")
    return "\n".join(lines)


PAGE = """\
# The first command on an environment

Results of `teach -p synth -e ENV -n x -l 20 -L 10 -t 4e3`, and of the [wrapper](../wrapper.md) with the same
number of labels over 4,000 random steps, on every environment of Gymnasium (newest versions) and MiniGrid,
and on the first ten Atari games. If `teach` refuses the command, it asks whether to run [a corrected
one](../environments.md#if-the-first-command-is-refused); Enter does. The wrapper is corrected once as its
error message suggests. Runs that still train at their timeout count as training.

{summary}

{table}

Repeat with `python -m benchmarks.first_command`; `--show` prints the stored results.
"""


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the documentation page as Markdown."""
    return PAGE.format(summary=summary(results), table=table(results))


def missing(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each (environment ID, side) without a result."""
    done = {(result["env_id"], result["side"]) for result in results}
    for env_id in environments():
        yield from ((env_id, side) for side in SIDES if (env_id, side) not in done)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what has no result yet, print the summary, and write the page if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON Lines file of results")
    parser.add_argument(
        "--show", action="store_true", help="print the stored results without trying anything"
    )
    parser.add_argument("--docs", type=Path, help="write the documentation page to this file")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="timeout of one try")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--wrap", nargs=2, metavar=("ENV", "SETTINGS"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.wrap:
        return wrap(given.wrap[0], json.loads(given.wrap[1]))
    if not given.show:
        with ThreadPoolExecutor(given.processes) as pool:
            for result in pool.map(
                lambda one: try_side(one[0], one[1], given.seconds), missing(load(given.results))
            ):
                append(given.results, result)
                print(f"{result['env_id']}, {result['side']}: {cell_of(result)}", flush=True)
    results = load(given.results)
    print(summary(results))
    if given.docs:
        given.docs.write_text(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
