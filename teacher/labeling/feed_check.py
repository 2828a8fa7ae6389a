"""Whether the site still has what a run has read from it: its experiment, and the decisions so far.

A trainer reads decisions after the last one that it knows. From an experiment that was deleted, or a database
that was replaced or restored to an older state, it would miss what comes. So it goes on with none of these,
and makes nothing there.
"""

import os
from http import HTTPStatus
from pathlib import Path

from teacher.data.ledger import Ledger
from teacher.errors import ForgottenError, SiteRefusedError
from teacher.labeling.client import Experiment, ExperimentSettings, Feed, FeedbackClient
from teacher.settings.config import CONFIG_NAME

_LOOKED_BACK = 100  # decisions that are compared


def take_up(client: FeedbackClient, settings: ExperimentSettings, ledger: Ledger) -> tuple[Experiment, int]:
    """Make the experiment on the site, or take it up again where it is as this run has left it.

    Also returns how many comparisons a site is asked anew that has lost them before any was decided.

    Raises:
        ForgottenError: it was deleted, or has other decisions than this run has read. Nothing was made.
        SiteRefusedError, SiteUnreachableError: as :meth:`FeedbackClient.put_experiment`.
    """
    feed = last_decisions(client, settings.name, ledger)
    experiment = client.put_experiment(settings)  # refuses a name that another run has now
    if feed is None:
        return experiment, len(ledger.unfinished("registered"))
    _compare(client, settings.name, ledger, feed)
    return experiment, 0


def last_decisions(client: FeedbackClient, name: str, ledger: Ledger) -> Feed | None:
    """Read the last decisions up to the ledger's cursor; None where there is no experiment yet.

    Raises:
        ForgottenError: there is none any more.
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
    """Refuse a feed that ends before the last decision that was read; raises :class:`ForgottenError`."""
    if feed.last_seq < ledger.cursor:
        raise ForgottenError(
            f"expected at least {ledger.cursor} decisions of {name} on the site at {client.site_url}, it has "
            f"{feed.last_seq}: its database was replaced or restored to an older state; {_remedy(ledger)}"
        )


def experiment_gone(client: FeedbackClient, name: str, ledger: Ledger) -> ForgottenError:
    """Make the error for an experiment that the site does not have, or not any more."""
    return ForgottenError(
        f"the site at {client.site_url} has no experiment {name} of this token's owner, and this run has "
        f"read {ledger.cursor} decisions of it: it was deleted there, or the site has another database; "
        f"{_remedy(ledger)}"
    )


def refuse_lost_database(state_dir: Path, ledger: Ledger) -> None:
    """Refuse to start a new site on this machine where the one that this run has read from is gone.

    A backup is restored only where there is no site. Raises :class:`ForgottenError`.
    """
    database = state_dir.resolve() / "site.sqlite3"
    if ledger.cursor and not database.exists() and not os.environ.get("DATABASE_URL"):
        raise ForgottenError(
            f"this run has read {ledger.cursor} decisions from the site of {state_dir}, whose database "
            f"{database} is gone; {_remedy(ledger)}"
        )


def _compare(client: FeedbackClient, name: str, ledger: Ledger, feed: Feed) -> None:
    """Refuse a site whose last decisions up to the cursor are not those that were read."""
    check_feed(client, name, ledger, feed)
    theirs = {item.seq: (item.comparison, item.decision) for item in feed.items}
    for seq, ours in ledger.outcomes(ledger.cursor - _LOOKED_BACK).items():
        if theirs.get(seq) != ours:
            raise ForgottenError(
                f"decision {seq} of {name} on the site at {client.site_url} is another than this run has "
                f"read: its database was restored to an older state, and people have answered since; "
                f"{_remedy(ledger)}"
            )


def _remedy(ledger: Ledger) -> str:
    run = ledger.path.parent
    if not (run / CONFIG_NAME).exists():
        return f"restore its newest backup, or begin anew in another log_dir; {ledger.path} keeps the labels"
    return (
        f"restore its newest backup, or begin another run from this one's policy: -n NAME --policy {run} "
        f"(teach export {run} FILE writes its labels)"
    )
