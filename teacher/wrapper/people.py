"""Setup of labeling by people: on the site, in a terminal, or in a notebook."""

import contextlib
import uuid
from pathlib import Path

from teacher.data.ledger import Ledger
from teacher.errors import DataError
from teacher.files import atomic_write
from teacher.labeling.client import ExperimentSettings
from teacher.labeling.people import about_lost, ask_people, open_site
from teacher.queries.collector import Collector
from teacher.settings.config import slug
from teacher.wrapper.clips import ClipSource
from teacher.wrapper.prompt import PromptCollector, terminal_descriptor
from teacher.wrapper.recording import Source
from teacher.wrapper.settings import WrapperConfig

_RUN_ID_NAME = "run_id"


def people_collector(
    config: WrapperConfig, source: Source, clips: ClipSource, ledger: Ledger, parts: contextlib.ExitStack
) -> Collector:
    """Create the label collector selected by the setting ``people``; closing ``parts`` closes it.

    If people label on the site, also create or update the experiment and print the URL of the labeling page.

    Raises:
        ConfigError: ``people`` is ``"terminal"``, but there is no terminal.
        DataError: the files of an earlier run in ``log_dir`` are damaged.
        SiteUnreachableError, SiteRefusedError: the site is unreachable or refuses the experiment.
    """
    if config.people != "site":
        terminal = terminal_descriptor() if config.people == "terminal" else None
        prompt = PromptCollector(ledger, clips.frames, config.logs, source.fps, terminal)
        return parts.enter_context(contextlib.closing(prompt))
    site = open_site(config.site, ledger, parts)
    settings = ExperimentSettings(
        name=config.site.name or f"{slug(source.env_id)}-{slug(config.logs.resolve().name)}",
        run_id=run_id_in(config.logs),
        env_id=source.env_id,
        prompt=config.site.prompt,
        n_labels=config.n_prefs,
        fps=source.fps,
        has_true_reward=True,
    )
    renderer = clips if clips.mode == "replay" else None  # the default renderer can encode captured frames
    collector = ask_people(site, ledger, settings, parts, renderer=renderer)
    notice = (f"Label here: {collector.experiment.invite_url}", *site.welcome, *about_lost(collector))
    print(*notice, sep="\n", flush=True)
    return collector


def run_id_in(logs: Path) -> uuid.UUID:
    """Read the run ID stored in ``log_dir``; create it if missing.

    The site uses this ID to find the experiment of an earlier run with the same ``log_dir``.

    Raises:
        DataError: the file with the run ID is damaged.
    """
    path = logs / _RUN_ID_NAME
    if not path.exists():
        with atomic_write(path) as file:
            file.write(str(uuid.uuid4()).encode())
    try:
        return uuid.UUID(path.read_text())
    except ValueError as error:
        raise DataError(
            f"{path} is damaged: it should contain a run ID; choose a different log_dir"
        ) from error
