"""The ``teach`` command line, such as ``teach -p human -e ShortHopper-v1 -n backflip``.

Help texts and invalid settings are handled here without importing torch.
"""

import argparse
import dataclasses
import difflib
import importlib
import itertools
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from teacher import interrupts
from teacher.cli.help_text import ENVIRONMENTS, HELP, SECTIONS
from teacher.cli.installation import DISTRIBUTION, check_agents, installed_version
from teacher.errors import ConfigError, TeacherError, join_errors
from teacher.loading import loading
from teacher.runs.extending import CHANGING, load_extended, steps_made
from teacher.settings.arguments import INTERRUPTED, OneLineParser, add_options
from teacher.settings.config import NO_OPTIONS, PARTS, RunSettings, TeachConfig
from teacher.settings.config_files import read_config_file
from teacher.settings.corrections import correct_settings
from teacher.settings.presets import Preset

COMMANDS: Mapping[str, str] = {
    "ls": "teacher.cli.ls",
    "site": "teacher.cli.site",
    "label": "teacher.cli.label",
    "doctor": "teacher.cli.doctor",
    "play": "teacher.cli.play",
    "export": "teacher.cli.export",
    "fit": "teacher.cli.fit",
    "evaluate": "teacher.cli.evaluate",
    "compare": "teacher.cli.compare",
    "relabel": "teacher.cli.relabel",
    "import": "teacher.cli.import_files",
    "record": "teacher.cli.record",
    "defaults": "teacher.cli.defaults",
}
"""Subcommands of ``teach`` and the modules that define their ``main``."""


def build_parser(*, of_agents: bool = True) -> OneLineParser:
    """Return the parser for training, with an option for each setting in :class:`TeachConfig`.

    Args:
        of_agents: True to include the ``--agent.*`` options. This requires importing torch, which adds about
            a second of startup time.
    """
    parser = OneLineParser(
        prog="teach",
        usage="teach -p {human,synth,rl} -e ENV -n NAME [options]",
        description="All options, by section. See teach --help for an introduction.",
        epilog=ENVIRONMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        all_settings="--help-all",
    )
    # The action "help" would print all options.
    parser.add_argument("-h", "--help", action="version", version=HELP, help="show an introduction and exit")
    parser.add_argument("--help-all", action="help", help="show this list of all options and exit")
    version = f"{DISTRIBUTION} {installed_version()}"
    parser.add_argument("--version", action="version", version=version, help="show the version and exit")
    parser.add_argument(
        "--resume", metavar="RUN", help="resume the run in this directory; a larger -t or -l extends it"
    )
    parser.add_argument(
        "--reopen",
        action="store_true",
        help="with --resume: reopen an experiment that was finished on the site",
    )
    parser.add_argument(
        "--yes", action="store_true", help="if a setting is refused, run the corrected command without asking"
    )
    parser.add_argument(
        "--config", metavar="FILE", help="read options from this TOML file; command-line options override it"
    )
    parser.add_argument(
        "--preset",
        choices=get_args(Preset),
        help="use the 2017 paper's settings for MuJoCo (paper) or Atari (paper_atari), or those of PEBBLE in "
        "B-Pref (bpref), as defaults",
    )
    fields = {field.name for field in dataclasses.fields(TeachConfig)}
    for title, names in SECTIONS.items():
        add_options(parser.add_argument_group(title), TeachConfig, leave_out=fields.difference(names))
    add_options(parser, TeachConfig, leave_out={*NO_OPTIONS, *itertools.chain(*SECTIONS.values())})
    if of_agents:
        from teacher.cli.agent_options import add_agent_options  # noqa: PLC0415 - torch takes a second

        about = "Hyperparameters. Defaults depend on the task: see teach defaults ENV."
        add_agent_options(parser.add_argument_group("agent", about))
    for name, kind in PARTS.items():
        add_options(parser.add_argument_group(name, kind.__doc__), kind, prefix=f"{name}.")
    return parser


def parse_arguments(arguments: Sequence[str]) -> RunSettings:
    """Parse a command line into a run's settings and ID; raise :class:`ConfigError` if one is invalid."""
    settings, refused = read_arguments(arguments)
    if refused is not None:
        raise refused
    return settings


def read_arguments(arguments: Sequence[str]) -> tuple[RunSettings, ConfigError | None]:
    """Parse a command line into a run's settings and ID, correcting or omitting invalid values.

    Also return an error that names the invalid values; None if all were valid. It is not raised here, so that
    the caller can first check the environment and then report all problems together.
    """
    of_agents = any(word.startswith("--agent.") or word == "--help-all" for word in arguments)
    given = vars(build_parser(of_agents=of_agents).parse_args(arguments))
    reopen, yes = given.pop("reopen", False), given.pop("yes", False)
    if "resume" in given:
        run_dir = Path(given.pop("resume"))
        if run_dir.is_file():  # such as its checkpoint.npz
            run_dir = run_dir.parent
        return _resumed(run_dir, given, reopen=reopen), None
    if "config" in given:
        given = {**read_config_file(Path(given.pop("config"))), **given}
    if reopen:
        raise ConfigError("--reopen works only with --resume RUN_DIR")
    required = {"env_id": "-e/--env_id", "predictor": "-p/--predictor", "name": "-n/--name"}
    missing = {name: flags for name, flags in required.items() if name not in given}
    if missing.keys() - {"name"}:
        raise ConfigError(
            f"missing options: {', '.join(missing.values())}; to resume a run instead, pass --resume RUN_DIR"
        )
    config, refused = correct_settings(given)
    return RunSettings(config, uuid.uuid4(), yes=yes), refused


def _resumed(run_dir: Path, given: Mapping[str, Any], *, reopen: bool) -> RunSettings:
    """Return the settings of the run in ``run_dir``, changed as requested.

    ``given`` contains new values of settings in ``CHANGING``, and perhaps others, which are refused.
    """
    others = [f"--{name}" for name in given if name not in CHANGING]
    if others:
        raise ConfigError(
            f"--resume can only raise a run's -t and -l, and change its --feedback, --lowest_rating and "
            f"--highest_rating; remove {' '.join(others)}, or start a new run from this run's policy: "
            f"-n NAME --policy {run_dir}"
        )
    config, run_id = load_extended(run_dir, given)
    if reopen and config.predictor != "human":
        raise ConfigError(f"--reopen works only with -p human; {run_dir} has no experiment on a site")
    if reopen and steps_made(config) >= config.num_timesteps:
        raise ConfigError(
            f"--reopen: {run_dir} has completed its {config.num_timesteps:,} steps; raise -t to train longer"
        )
    return RunSettings(config, run_id, resumed=True, reopen=reopen or bool(given))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``teach``, standalone or as a ``torchrun`` worker, and return the exit status."""
    try:
        with interrupts.listening():
            check_agents()
            return _dispatch(sys.argv[1:] if arguments is None else arguments)
    except TeacherError as error:
        print(f"teach: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("teach: interrupted before training started", file=sys.stderr)
        return INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments:
        print(HELP, end="")
        return ConfigError.exit_status
    first = arguments[0]
    if first in COMMANDS:
        with loading():
            command: Callable[[Sequence[str]], int] = importlib.import_module(COMMANDS[first]).main
        return command(arguments[1:])
    if not first.startswith("-"):
        close = difflib.get_close_matches(first, COMMANDS, n=1)
        hint = f"did you mean teach {close[0]}?" if close else "teach --help lists all commands"
        raise ConfigError(f"unknown command {first!r}; {hint}")
    # Under torchrun, only rank 0 parses the settings. A single process parses them before importing torch.
    settings = None if "WORLD_SIZE" in os.environ else _read_settings(arguments)
    with loading():
        from teacher.cli import train  # noqa: PLC0415 - torch and MuJoCo take seconds

    def read(corrected: Sequence[str] | None) -> tuple[RunSettings, ConfigError | None]:
        return settings or _read_settings(arguments) if corrected is None else _read_settings(corrected)

    return train.main(read)


def _read_settings(arguments: Sequence[str]) -> tuple[RunSettings, ConfigError | None]:
    """Call :func:`read_arguments`, and check that the environment is registered.

    Raises:
        TeacherError: a setting or the environment is invalid; one error reports all problems.
    """
    settings, refused = read_arguments(arguments)
    problems: list[TeacherError] = [] if refused is None else [refused]
    with loading():
        from teacher.envs.families import resolve_env_id  # noqa: PLC0415 - Gymnasium; --help does without
        from teacher.envs.registry import find_spec  # noqa: PLC0415

    try:
        find_spec(resolve_env_id(settings.config.env_id))
    except TeacherError as error:
        raise join_errors([*problems, error]) from error
    return settings, refused


if __name__ == "__main__":
    sys.exit(main())
