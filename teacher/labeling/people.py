"""People as teachers: the site where they answer, opened and told of what they are asked."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from teacher.clips import ClipRenderer
from teacher.data.ledger import Ledger
from teacher.errors import pluralize
from teacher.labeling.client import ExperimentSettings, FeedbackClient
from teacher.labeling.embedded_site import ensure_site
from teacher.labeling.feed_check import last_decisions, refuse_lost_database, take_up
from teacher.labeling.human import HumanCollector
from teacher.labeling.publisher import PublishTarget, Renderer
from teacher.queries.judges import Value, true_return
from teacher.settings.addresses import site_checks
from teacher.settings.checks import refuse_all
from teacher.settings.config import DEFAULT_PROMPT
from teacher.settings.variables import REDIS_VARIABLE, TOKEN_VARIABLE, read_redis_url, require_token
from teacher.storage import Storage, open_storage

if TYPE_CHECKING:
    from teacher.clips.queue import RenderQueue


@dataclass(frozen=True, kw_only=True)
class SiteOptions:
    """Which labeling site, and what people are asked there; all as the options of ``teach``."""

    name: Annotated[str | None, "of the experiment on the site"] = None
    prompt: Annotated[str, "the sentence labelers see"] = DEFAULT_PROMPT
    site_url: Annotated[str | None, "a site elsewhere, its token in TEACHER_TOKEN"] = None
    storage: Annotated[str | None, "where clips go: s3://bucket/prefix or a folder"] = None
    state_dir: Annotated[str, "folder of the site on this machine"] = "state"
    bind: Annotated[str, "address that the site on this machine listens on"] = "127.0.0.1"
    public_url: Annotated[str | None, "address by which others reach it"] = None

    def __post_init__(self) -> None:
        refuse_all(self, site_checks(self.site_url, self.storage, self.bind, self.public_url))


@dataclass(frozen=True)
class Site:
    """Where people label; ``revive`` starts the site again where that is in our hands."""

    url: str
    token: str
    storage: str
    revive: Callable[[], None] | None = None
    welcome: tuple[str, ...] = ()

    @property
    def has_bucket(self) -> bool:
        """Return whether clips lie where render workers on other hosts can put them."""
        return self.storage.startswith("s3://")


def open_site(options: SiteOptions, ledger: Ledger, parts: contextlib.ExitStack) -> Site:
    """Open the site that the options name, or the one of this machine, started where it does not run.

    Raises:
        ConfigError: the options do not fit, or the token is missing.
        ForgottenError: the site of this machine is gone, and the run of this ledger has read from it.
        SiteUnreachableError: the site on this machine did not start.
    """
    require_token(options.site_url)
    if options.site_url is not None and options.storage is not None:
        return Site(options.site_url, os.environ[TOKEN_VARIABLE], options.storage)
    refuse_lost_database(Path(options.state_dir), ledger)
    handle = ensure_site(Path(options.state_dir), options.bind, options.public_url, options.storage)
    parts.callback(handle.release)
    admin = f"Admin: {handle.admin_url}  user admin, password in {handle.admin_password_file}"
    return Site(handle.url, handle.token, handle.storage, handle.revive, (admin,))


def ask_people(
    site: Site,
    ledger: Ledger,
    settings: ExperimentSettings,
    parts: contextlib.ExitStack,
    value: Value = true_return,
    renderer: Renderer | None = None,
) -> HumanCollector:
    """Begin, or take up again, an experiment on the site; ``parts`` closes it.

    Args:
        site: where.
        ledger: of the run.
        settings: of the experiment.
        parts: takes up what is opened.
        value: of a segment, for scripted labelers.
        renderer: makes clips; without it processes of this machine or render workers do.
    """
    client = parts.enter_context(contextlib.closing(FeedbackClient(site.url, site.token)))
    storage = open_storage(site.storage)
    renderer = renderer or _open_renderer(site, storage, parts)
    publication = PublishTarget(ledger, client, renderer, storage, settings, value)
    collector = HumanCollector(publication, site.revive)
    return parts.enter_context(contextlib.closing(collector))


def reopen_experiment(site: Site, ledger: Ledger, settings: ExperimentSettings) -> None:
    """Let an experiment go on that is finished; one that is paused stays so.

    Raises:
        ForgottenError, SiteRefusedError, SiteUnreachableError: as :func:`take_up`.
    """
    with contextlib.closing(FeedbackClient(site.url, site.token)) as client:
        if last_decisions(client, settings.name, ledger) is None:
            return  # it begins anew
        experiment, _ = take_up(client, settings, ledger)
        if experiment.state == "finished":
            client.put_experiment(settings, state="running")


def _open_renderer(site: Site, storage: Storage, parts: contextlib.ExitStack) -> "ClipRenderer | RenderQueue":
    """Open processes on this machine, and with ``REDIS_URL`` a queue of render workers before them."""
    renderer = parts.enter_context(ClipRenderer())
    redis_url = read_redis_url()
    if not redis_url or not site.has_bucket:
        return renderer
    from teacher.clips.queue import RenderQueue  # noqa: PLC0415 (it brings Celery)

    queue = RenderQueue(redis_url, storage, site.storage, renderer)
    return parts.enter_context(contextlib.closing(queue))


def about_lost(collector: HumanCollector) -> list[str]:
    """Say that the site had lost the experiment, where it had."""
    if not collector.asked_anew:
        return []
    name, asked = collector.experiment.name, pluralize(collector.asked_anew, "comparison")
    return [f"The site did not have {name} any more; it was made again, and asks {asked} anew"]


def about_rendering(site: Site) -> list[str]:
    """Say who makes the clips, where that is not this machine's processes alone."""
    redis_url = read_redis_url()
    if not redis_url:
        return []
    if not site.has_bucket:
        return [f"{REDIS_VARIABLE} is not used: render workers need --storage s3://bucket/prefix"]
    return [f"Clips are made by the render workers of {urlsplit(redis_url).hostname}"]
