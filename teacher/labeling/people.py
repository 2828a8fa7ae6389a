"""Setup of label collection from people: open the labeling site and create the run's experiment."""

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
from teacher.labeling.human import HumanCollector, last_decisions, refuse_lost_database, take_up
from teacher.labeling.publisher import PublishTarget, Renderer
from teacher.queries.judges import Value, true_return
from teacher.settings.addresses import SiteSettings
from teacher.settings.checks import check_fields, refuse
from teacher.settings.variables import REDIS_VARIABLE, TOKEN_VARIABLE, read_redis_url, require_token
from teacher.storage import Storage, open_storage

if TYPE_CHECKING:
    from teacher.clips.queue import RenderQueue


@dataclass(frozen=True, kw_only=True)
class SiteOptions(SiteSettings):
    """Options for the labeling site and the experiment; all but ``name`` are also options of ``teach``."""

    name: Annotated[str | None, "name of the experiment on the site"] = None

    def __post_init__(self) -> None:
        check_fields(self, prefix="site.")
        refuse(self, self.site_problems(), prefix="site.")


@dataclass(frozen=True)
class Site:
    """Labeling site that a run uses.

    Attributes:
        revive: function that restarts the site if it has died; None for a site on a different machine.
    """

    url: str
    token: str
    storage: str
    revive: Callable[[], None] | None = None

    @property
    def has_bucket(self) -> bool:
        """True if the clip store is a bucket, which render workers on other hosts can write to."""
        return self.storage.startswith("s3://")


def open_site(options: SiteSettings, ledger: Ledger | None, parts: contextlib.ExitStack) -> Site:
    """Return the site at ``options.site_url``, or this machine's site if no URL is set.

    This machine's site is started if it is not already running.

    Raises:
        ConfigError: the options are invalid, or ``TEACHER_TOKEN`` is missing.
        ForgottenError: the run has read decisions from this machine's site, but the database is missing.
        SiteUnreachableError: this machine's site didn't start.
    """
    require_token(options.site_url)
    if options.site_url is not None and options.storage is not None:
        return Site(options.site_url, os.environ[TOKEN_VARIABLE], options.storage)
    if ledger is not None:
        refuse_lost_database(Path(options.state_dir), ledger)
    handle = ensure_site(Path(options.state_dir), options.bind, options.public_url, options.storage)
    parts.callback(handle.release)
    return Site(handle.url, handle.token, handle.storage, handle.revive)


def ask_people(
    site: Site,
    ledger: Ledger,
    settings: ExperimentSettings,
    parts: contextlib.ExitStack,
    value: Value = true_return,
    renderer: Renderer | None = None,
) -> HumanCollector:
    """Create or resume an experiment on the site, and return a collector for its labels.

    Args:
        value: function that scores a segment; scripted labelers see the score as the true return.
        renderer: clip renderer; if None, clips are rendered by render workers, or on this machine if no
            workers are configured.
    """
    client = parts.enter_context(contextlib.closing(FeedbackClient(site.url, site.token)))
    storage = open_storage(site.storage)
    renderer = renderer or _open_renderer(site, storage, parts)
    publication = PublishTarget(ledger, client, renderer, storage, settings, value)
    collector = HumanCollector(publication, site.revive)
    return parts.enter_context(contextlib.closing(collector))


def reopen_experiment(site: Site, ledger: Ledger, settings: ExperimentSettings) -> None:
    """Reopen an experiment that was finished on the site; leave a paused experiment paused.

    Raises:
        ForgottenError, SiteRefusedError, SiteUnreachableError: as in :func:`take_up`.
    """
    with contextlib.closing(FeedbackClient(site.url, site.token)) as client:
        if last_decisions(client, settings.name, ledger) is None:
            return  # the experiment doesn't exist yet, so there is nothing to reopen
        experiment, _ = take_up(client, settings, ledger)
        if experiment.state == "finished":
            client.put_experiment(settings, state="running")


def _open_renderer(site: Site, storage: Storage, parts: contextlib.ExitStack) -> "ClipRenderer | RenderQueue":
    """Return a client for the render workers if they can be used, otherwise a local renderer.

    Render workers require ``REDIS_URL`` and a bucket as the clip store. If they fail, the client renders
    locally.
    """
    renderer = parts.enter_context(ClipRenderer())
    redis_url = read_redis_url()
    if not redis_url or not site.has_bucket:
        return renderer
    from teacher.clips.queue import RenderQueue  # noqa: PLC0415 (imports Celery)

    queue = RenderQueue(redis_url, storage, site.storage, renderer)
    return parts.enter_context(contextlib.closing(queue))


def about_lost(collector: HumanCollector) -> list[str]:
    """Return a one-item list with a message if the site had lost the experiment; otherwise, an empty list."""
    if not collector.asked_anew:
        return []
    name, asked = collector.experiment.name, pluralize(collector.asked_anew, "comparison")
    return [f"The site had lost the experiment {name}; it was created again, with {asked} to label"]


def about_rendering(site: Site) -> list[str]:
    """Return a one-item list with a message about render workers; empty if ``REDIS_URL`` is not set."""
    redis_url = read_redis_url()
    if not redis_url:
        return []
    if not site.has_bucket:
        return [f"{REDIS_VARIABLE} is ignored, because render workers need --storage s3://bucket/prefix"]
    return [f"Clips are rendered by the render workers that use Redis on {urlsplit(redis_url).hostname}"]
