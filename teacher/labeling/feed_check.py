"""Checks that the site still has the experiment and the decisions that a run has read from it.

A trainer reads the decisions after the last one it knows. It would miss new ones if the experiment was
deleted, or the database was replaced or restored to an older state. So it stops then, and creates nothing.
"""

import os
from http import HTTPStatus
from pathlib import Path

from teacher.data.ledger import Ledger
from teacher.errors import ForgottenError, SiteRefusedError
from teacher.labeling.client import Experiment, ExperimentSettings, Feed, FeedbackClient
from teacher.settings.saved_config import CONFIG_NAME

_LOOKED_BACK = 100  # decisions to compare


def take_up(client: FeedbackClient, settings: ExperimentSettings, ledger: Ledger) -> tuple[Experiment, int]:
    """Create the experiment on the site, or continue it if it is as this run has left it.

    Returns:
        The experiment, and the number of comparisons to register again because the site lost the experiment
        before any decision.

    Raises:
        ForgottenError: it was deleted, or its decisions differ from those read. Nothing was created.
        SiteRefusedError, SiteUnreachableError: as by :meth:`FeedbackClient.put_experiment`.
    """
    feed = last_decisions(client, settings.name, ledger)
    experiment = client.put_experiment(settings)  # fails if another run has taken the name
    if feed is None:
        return experiment, len(ledger.unfinished("registered"))
    _compare(client, settings.name, ledger, feed)
    return experiment, 0


def last_decisions(client: FeedbackClient, name: str, ledger: Ledger) -> Feed | None:
    """Read the last decisions up to the ledger's cursor; return None if there is no experiment yet.

    Raises:
        ForgottenError: the experiment is gone.
    """
    try:
        return client.decisions(name, max(0, ledger.cursor - _LOOKED_BACK), _LOOKED_BACK)
    except SiteRefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        if ledger.cursor:
            raise experiment_gone(client, name, ledger) from error
        return None


def check_feed(client: FeedbackClient, name: str, ledger: Ledger, feed: Feed) -> None:
    """Raise :class:`ForgottenError` if a feed ends before the last decision that was read."""
    if feed.last_seq < ledger.cursor:
        raise ForgottenError(
            f"expected at least {ledger.cursor} decisions of {name} on the site at {client.site_url}, it has "
            f"{feed.last_seq}: its database was replaced or restored to an older state; {_remedy(ledger)}"
        )


def experiment_gone(client: FeedbackClient, name: str, ledger: Ledger) -> ForgottenError:
    """Return the error for an experiment that is missing on the site."""
    return ForgottenError(
        f"the site at {client.site_url} has no experiment {name} of this token's owner, and this run has "
        f"read {ledger.cursor} decisions of it: it was deleted there, or the site has another database; "
        f"{_remedy(ledger)}"
    )


def refuse_lost_database(state_dir: Path, ledger: Ledger) -> None:
    """Raise :class:`ForgottenError` if this machine's site has lost the database that the run has read from.

    No new site is started then, as a backup can be restored only without one.
    """
    database = state_dir.resolve() / "site.sqlite3"
    if ledger.cursor and not database.exists() and not os.environ.get("DATABASE_URL"):
        raise ForgottenError(
            f"this run has read {ledger.cursor} decisions from the site of {state_dir}, whose database "
            f"{database} is gone; {_remedy(ledger)}"
        )


def _compare(client: FeedbackClient, name: str, ledger: Ledger, feed: Feed) -> None:
    """Raise :class:`ForgottenError` if the last decisions up to the cursor differ from those read."""
    check_feed(client, name, ledger, feed)
    theirs = {item.seq: (item.comparison, item.decision) for item in feed.items}
    for seq, ours in ledger.outcomes(ledger.cursor - _LOOKED_BACK).items():
        if theirs.get(seq) != ours:
            raise ForgottenError(
                f"decision {seq} of {name} on the site at {client.site_url} differs from the one this run "
                f"has read: its database was restored to an older state, and people have labeled since; "
                f"{_remedy(ledger)}"
            )


def _remedy(ledger: Ledger) -> str:
    run = ledger.path.parent
    if not (run / CONFIG_NAME).exists():
        return f"restore its newest backup, or start again in another log_dir; {ledger.path} keeps the labels"
    return (
        f"restore its newest backup, or start another run from this one's policy: -n NAME --policy {run} "
        f"(teach export {run} FILE writes its labels)"
    )
