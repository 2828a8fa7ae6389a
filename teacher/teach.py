"""The command line ``teach``, such as ``teach -p human -e ShortHopper-v1 -n backflip``.

Everything that needs no environment is parsed, listed or rejected here without importing torch.
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
from typing import Any, NoReturn, get_args

from teacher import interrupts
from teacher.cli.help_text import ENVIRONMENTS, HELP, SECTIONS
from teacher.cli.installation import DISTRIBUTION, check_agents, installed_version
from teacher.errors import ConfigError, TeacherError, join_errors
from teacher.loading import loading
from teacher.settings.arguments import INTERRUPTED, OneLineParser, add_options
from teacher.settings.config import NO_OPTIONS, PARTS, RunSettings, TeachConfig
from teacher.settings.config_file import read_config_file
from teacher.settings.corrections import correct_settings
from teacher.settings.options import Preset
from teacher.training.extending import GROWING, load_extended, steps_made

COMMANDS: Mapping[str, str] = {
    "ls": "teacher.cli.ls",
    "doctor": "teacher.cli.doctor",
    "play": "teacher.cli.play",
    "export": "teacher.cli.export",
    "fit": "teacher.cli.fit",
    "evaluate": "teacher.cli.evaluate",
    "relabel": "teacher.cli.relabel",
    "import": "teacher.cli.import_files",
    "record": "teacher.cli.record",
    "defaults": "teacher.cli.defaults",
}
"""Commands of ``teach`` besides training, and the modules with their ``main``."""


def build_parser(*, of_agents: bool = True) -> OneLineParser:
    """Return the parser, with an option for each field of :class:`TeachConfig` and its parts, and a few more.

    Args:
        of_agents: include the options ``--agent.*``, which take a second to import.
    """
    parser = OneLineParser(
        prog="teach",
        usage="teach -p {human,synth,rl} -e ENV -n NAME [options]",
        description="All options, by section; see teach --help for an introduction.",
        epilog=ENVIRONMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        all_settings="--help-all",
    )
    # Not "help", which prints all options.
    parser.add_argument("-h", "--help", action="version", version=HELP, help="introduction")
    parser.add_argument("--help-all", action="help", help="print this")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.add_argument(
        "--resume", metavar="RUN", help="continue the run in this directory; -t or -l extend it"
    )
    parser.add_argument(
        "--reopen",
        action="store_true",
        help="with --resume: continue although the experiment was finished on the site",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="read options from this TOML file; the command line overrides it"
    )
    parser.add_argument(
        "--preset",
        choices=get_args(Preset),
        help="settings of the 2017 paper for MuJoCo (paper) or Atari (paper_atari); other options override",
    )
    fields = {field.name for field in dataclasses.fields(TeachConfig)}
    for title, names in SECTIONS.items():
        add_options(parser.add_argument_group(title), TeachConfig, leave_out=fields.difference(names))
    add_options(parser, TeachConfig, leave_out={*NO_OPTIONS, *itertools.chain(*SECTIONS.values())})
    if of_agents:
        from teacher.cli.agent_options import add_agent_options  # noqa: PLC0415 - torch takes a second

        about = "Hyperparameters; the defaults depend on the task, see teach defaults ENV."
        add_agent_options(parser.add_argument_group("agent", about))
    for name, kind in PARTS.items():
        add_options(parser.add_argument_group(name, kind.__doc__), kind, prefix=f"{name}.")
    return parser


class _Version(argparse.Action):
    """Print the installed version, and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"{DISTRIBUTION} {installed_version()}")
        parser.exit()


def parse_arguments(arguments: Sequence[str]) -> RunSettings:
    """Return the settings and identity of the run that a command line asks for.

    Raises:
        ConfigError: a setting is missing or invalid.
    """
    settings = read_arguments(arguments)
    if settings.refused is not None:
        raise settings.refused
    return settings


def read_arguments(arguments: Sequence[str]) -> RunSettings:
    """Return the settings of a command line, with replacements of invalid ones and the error in ``refused``.

    Raises:
        ConfigError: required options are missing, or an invalid one can't be replaced.
    """
    of_agents = any(word.startswith("--agent.") or word == "--help-all" for word in arguments)
    given = vars(build_parser(of_agents=of_agents).parse_args(arguments))
    reopen = given.pop("reopen", False)
    if "resume" in given:
        return _resumed(Path(given.pop("resume")), given, reopen=reopen)
    if "config" in given:
        given = {**read_config_file(Path(given.pop("config"))), **given}
    if reopen:
        raise ConfigError("--reopen continues an earlier run, so it needs --resume RUN_DIR")
    required = {"env_id": "-e/--env_id", "predictor": "-p/--predictor", "name": "-n/--name"}
    missing = {name: flags for name, flags in required.items() if name not in given}
    if missing.keys() - {"name"}:
        raise ConfigError(f"expected {', '.join(missing.values())}, or --resume RUN_DIR")
    config, refused = correct_settings(given)
    return RunSettings(config, uuid.uuid4(), refused=refused)


def _resumed(run_dir: Path, given: Mapping[str, Any], *, reopen: bool) -> RunSettings:
    """Return the settings of an earlier run, extended if ``given`` has more steps or labels."""
    others = [f"--{name}" for name in given if name not in GROWING]
    if others:
        raise ConfigError(
            f"--resume keeps the run's settings; leave out {' '.join(others)} (only -t and -l may grow), or "
            f"start another run from its policy: -n NAME --policy {run_dir}"
        )
    config, run_id = load_extended(run_dir, given)
    if reopen and config.predictor != "human":
        raise ConfigError(f"--reopen: {run_dir} has no experiment on a site; expected a run with -p human")
    if reopen and steps_made(config) >= config.num_timesteps:
        raise ConfigError(
            f"--reopen: {run_dir} has completed its {config.num_timesteps:,} steps; give it more with -t"
        )
    return RunSettings(config, run_id, resumed=True, reopen=reopen or bool(given))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, also as one of ``torchrun``'s processes, and return the exit status."""
    try:
        with interrupts.listening():
            check_agents()
            return _dispatch(sys.argv[1:] if arguments is None else arguments)
    except TeacherError as error:
        print(f"teach: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("teach: interrupted before anything started", file=sys.stderr)
        return INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names, or train."""
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
        raise ConfigError(f"expected an option or a command, got {first!r}; {hint}")
    # Of several processes only rank 0 parses the settings; a single process does so before importing torch.
    settings = None if "WORLD_SIZE" in os.environ else _read_settings(arguments)
    with loading():
        from teacher.cli import train  # noqa: PLC0415 - torch and MuJoCo take seconds

    return train.main(lambda: settings or _read_settings(arguments))


def _read_settings(arguments: Sequence[str]) -> RunSettings:
    """Return the settings of a run; raises one error for an unregistered environment and invalid settings."""
    settings = read_arguments(arguments)
    problems: list[TeacherError] = [] if settings.refused is None else [settings.refused]
    with loading():
        from teacher.envs.families import resolve_env_id  # noqa: PLC0415 - Gymnasium; --help does without
        from teacher.envs.registry import find_spec  # noqa: PLC0415

    try:
        find_spec(resolve_env_id(settings.config.env_id))
    except TeacherError as error:
        raise join_errors([*problems, error]) from error
    return settings


if __name__ == "__main__":
    sys.exit(main())
