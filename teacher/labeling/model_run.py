"""Labeling by a model from start to report, for ``teach label``."""

import contextlib
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import requests

from teacher.connections import CONNECT_SECONDS, READ_SECONDS
from teacher.errors import ConfigError, SiteUnreachableError, TeacherError, pluralize
from teacher.labeling.bots import BotError
from teacher.labeling.endpoint import Endpoint
from teacher.labeling.model import LINK, ModelLabeler
from teacher.labeling.model_report import report
from teacher.labeling.people import open_site
from teacher.settings.checks import SHARE
from teacher.settings.config_files import load_config
from teacher.settings.endpoint import EndpointSettings


def label(given: Namespace) -> None:
    """Let the model label until a limit, Ctrl-C or the end of the experiment, and print a report.

    Args:
        given: the options of ``teach label``, by name.

    Raises:
        TeacherError: a setting is invalid, the site or the model doesn't respond, or the site refuses it.
    """
    try:
        _label(given)
    except BotError as error:
        raise TeacherError(str(error)) from error


def _label(given: Namespace) -> None:
    missing = [f"--{name}" for name in ("url", "model") if not getattr(given, name, None)]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} missing; pass the model's endpoint and its name")
    if not SHARE.holds(given.share):
        raise ConfigError(f"--share: expected {SHARE.expectation}; got {given.share:g}")
    names = {field.name for field in fields(EndpointSettings)}
    settings = {name: value for name, value in vars(given).items() if name in names}
    endpoint = Endpoint(EndpointSettings(**settings))
    with contextlib.ExitStack() as parts:
        site, experiment, token = _find(given.run, parts)
        _require_answer(site)
        log = given.log or Path(f"{experiment or 'invitation'}-{given.model.replace('/', '-')}.jsonl")
        if not given.dry_run:
            try:
                log.touch()
            except OSError as error:
                raise ConfigError(f"--log: can't write {log}: {error.strerror}; pass another file") from error
        labeler = ModelLabeler(site, experiment, token, endpoint, log, share=given.share)
        if given.dry_run:
            _preview(labeler)
            return
        print(f"{labeler.name} labels; it waits while there is no question for it. Ctrl-C ends.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            labeler.run()
        for line in _report(labeler, endpoint, has_token=bool(token)):
            print(line)
        print(f"replies: {log}")
    if labeler.error is not None:
        raise TeacherError(str(labeler.error))
    if labeler.limit is not None:
        print(f"stopped: {labeler.limit}")
    elif labeler.stopped:
        raise TeacherError("the site stopped the model: it failed attention checks, or was blocked")


def _find(run: str, parts: contextlib.ExitStack) -> tuple[str, str, str]:
    """Return a run's site or an invitation link, and for a run, its experiment and the site's token."""
    if LINK.fullmatch(run):
        return run, "", ""
    config, _ = load_config(Path(run))
    if config.predictor != "human":
        raise ConfigError(f"{run} has no experiment, because it was trained with -p {config.predictor}")
    site = open_site(config, None, parts)
    return site.url, config.experiment, site.token


def _require_answer(site: str) -> None:
    """Raise SiteUnreachableError if the site doesn't respond; later, labelers wait until it does."""
    link = LINK.fullmatch(site)
    url = link[1] if link else f"{site}/"
    try:
        requests.get(f"{url}readyz", timeout=(CONNECT_SECONDS, READ_SECONDS))
    except requests.RequestException as error:
        raise SiteUnreachableError(
            f"no response from the labeling site at {url}; check its address"
        ) from error


def _report(labeler: ModelLabeler, endpoint: Endpoint, *, has_token: bool) -> Iterator[str]:
    """Yield the lines of the report; a labeler without a researcher's token can't see others' answers."""
    used, labels = endpoint.used, labeler.labels
    per_label = f", {endpoint.cost / labels:.4f} per label" if labels else ""
    cost = "" if endpoint.settings.price_in is None else f", cost {endpoint.cost:.4f}{per_label}"
    yield (
        f"{labeler.name}: {pluralize(labels, 'label')}, {pluralize(used.requests, 'request')}, "
        f"{used.sent + used.received:,} tokens{cost}"
    )
    if has_token and labels:
        yield from report(labeler.exported("comparisons"), labeler.exported("labels"), labeler.name)


def _preview(labeler: ModelLabeler) -> None:
    shown = labeler.preview()
    if shown is None:
        print("There is no question for the model now; with --share, it gets some that no person answered.")
        return
    text, pictures = shown
    print(text)
    for picture in pictures:
        with tempfile.NamedTemporaryFile(prefix="clip-", suffix=".png", delete=False) as file:
            file.write(picture)
        print(f"picture: {file.name}")
