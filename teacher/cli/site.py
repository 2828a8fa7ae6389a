"""``teach site``: open the labeling site of runs that have ended, or run one of the site's commands."""

import os
import subprocess
import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from teacher.errors import ConfigError
from teacher.settings.addresses import SiteSettings
from teacher.settings.arguments import OneLineParser, add_options, report_errors
from teacher.settings.checks import refuse
from teacher.settings.config_files import load_config

if TYPE_CHECKING:
    from teacher.labeling.embedded_site import SiteHandle

COMMANDS = {
    "invite": "print a labeler's invitation link",
    "token": "create an API token for a trainer",
    "backup": "copy the database, clips, runs and secrets into a new folder",
    "restore": "restore a backup",
    "migrate": "create the database, or update it to this version",
    "check": "check the site's settings",
    "chores": "run the periodic maintenance tasks once",
    "createsuperuser": "create an admin with a password",
    "changepassword": "change a user's password",
    "delete_experiment": "delete an experiment with its labels and clips",
    "forget_participants": "delete platform IDs of participants",
    "import_labels": "import exported comparisons and labels",
    "revoke_tokens": "revoke a user's API tokens",
    "setup_storage": "create and check the clip store",
}
"""Management commands of the site, each with its own ``--help``."""

_OPTIONS = ("storage", "state_dir", "bind", "public_url")
_OTHERS = frozenset(SiteSettings.__dataclass_fields__) - frozenset(_OPTIONS)
_WITHOUT_DATABASE = frozenset({"restore", "migrate", "check", "setup_storage"})
_POLL_SECONDS = 2.0


def main(arguments: Sequence[str]) -> int:
    """Run ``teach site`` and return the exit status."""
    lines = [f"  teach site {name:<21}{text}" for name, text in COMMANDS.items()]
    parser = OneLineParser(
        prog="teach site",
        usage="teach site [RUN ...] [options], or teach site COMMAND ... [--state_dir STR]",
        description="Open the labeling site of runs on this machine after they have ended: review answers, "
        "export, invite. Press Ctrl-C to close it.",
        epilog="\n".join(["commands, each with its own --help:", *lines]),
        formatter_class=RawDescriptionHelpFormatter,
    )
    if arguments and arguments[0] in COMMANDS:
        return report_errors(parser, lambda: _manage(arguments))
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="directories of runs to list")
    add_options(parser, SiteSettings, leave_out=_OTHERS)
    given = parser.parse_args(arguments)
    return report_errors(parser, lambda: _open(given.runs, {name: getattr(given, name) for name in _OPTIONS}))


def _manage(arguments: Sequence[str]) -> int:
    """Run a management command on the site in ``--state_dir`` and return its exit status."""
    parser = OneLineParser(prog="teach site", add_help=False)
    parser.add_argument("--state_dir")
    given, words = parser.parse_known_args(arguments)
    state_dir = given.state_dir or os.environ.get("TEACHER_STATE_DIR") or "state"
    if words[0] not in _WITHOUT_DATABASE and "--help" not in words:
        _require_site(Path(state_dir))
    environment = {**os.environ, "TEACHER_STATE_DIR": state_dir}
    return subprocess.call([sys.executable, "-m", "human_feedback_site.manage", *words], env=environment)


def _open(runs: Sequence[Path], given: dict[str, str | None]) -> None:
    """Keep the site open until Ctrl-C."""
    settings, experiments = _settings_of(runs, given)
    refuse(settings, settings.site_problems())
    state_dir = Path(settings.state_dir)
    _require_site(state_dir)
    from teacher.labeling.embedded_site import ensure_site  # noqa: PLC0415 - imports requests

    handle = ensure_site(state_dir, settings.bind, settings.public_url, settings.storage)
    try:
        _greet(handle, experiments)
        while True:
            time.sleep(_POLL_SECONDS)
            handle.revive()
    except KeyboardInterrupt:
        print("\nThe site stops within two minutes, unless a run uses it.")
    finally:
        handle.release()


def _require_site(state_dir: Path) -> None:
    """Raise ConfigError if a folder has no site's database."""
    if not (state_dir / "site.sqlite3").exists() and not os.environ.get("DATABASE_URL"):
        raise ConfigError(
            f"--state_dir: there is no labeling site in {state_dir}; pass the folder of one, or the "
            "directory of a run with -p human"
        )


def _greet(handle: "SiteHandle", experiments: Sequence[str]) -> None:
    print(f"Open: {handle.sign_in_url}")
    for name in experiments:
        print(f"  {handle.page_url(name)}")
    print("Press Ctrl-C to close the site.", flush=True)


def _settings_of(runs: Sequence[Path], given: dict[str, str | None]) -> tuple[SiteSettings, list[str]]:
    """Return the settings of the runs' site, changed as given, and the names of the runs' experiments."""
    configs = [load_config(run)[0] for run in runs]
    for run, config in zip(runs, configs, strict=True):
        if config.predictor != "human":
            raise ConfigError(
                f"{run} has no experiment on a site, because it was trained with -p {config.predictor}"
            )
        if config.site_url is not None:
            raise ConfigError(f"{run} uses the site at {config.site_url}; open it there")
        if config.state_dir != configs[0].state_dir:
            raise ConfigError(f"{run} and {runs[0]} use different sites; pass the runs of one site")
    kept = {name: getattr(configs[0], name) for name in _OPTIONS} if configs else {}
    changed = {name: value for name, value in given.items() if value is not None}
    return SiteSettings(**{**kept, **changed}), [config.experiment for config in configs]
