"""Checks that the site still has a run's experiment and all decisions that the run has read.

A trainer reads only the decisions after its cursor. If the experiment was deleted, or the database replaced
or restored to an older state, the trainer would miss new decisions. So it stops, without creating anything on
the site.
"""

import os
from http import HTTPStatus
from pathlib import Path

from teacher.data.ledger import Ledger
from teacher.errors import ForgottenError, SiteRefusedError
from teacher.labeling.client import Experiment, ExperimentSettings, Feed, FeedbackClient
from teacher.settings.saved_config import CONFIG_NAME

_LOOKED_BACK = 100  # number of decisions to compare


def take_up(client: FeedbackClient, settings: ExperimentSettings, ledger: Ledger) -> tuple[Experiment, int]:
    """Create the experiment on the site, or resume it if the site's decisions match the run's ledger.

    Returns:
        The experiment, and the number of comparisons that must be registered again. That number is 0 unless
        the site lost the experiment before this run had read any decision.

    Raises:
        ForgottenError: the experiment was deleted, or its decisions differ from those in the ledger. Nothing
            was created on the site.
        SiteRefusedError: the token is invalid, or a different run uses the experiment's name.
        SiteUnreachableError: the site is unreachable.
    """
    feed = last_decisions(client, settings.name, ledger)
    experiment = client.put_experiment(settings)  # fails if a different run uses the name
    if feed is None:
        return experiment, len(ledger.unfinished("registered"))
    _compare(client, settings.name, ledger, feed)
    return experiment, 0


def last_decisions(client: FeedbackClient, name: str, ledger: Ledger) -> Feed | None:
    """Read the last few decisions up to the ledger's cursor; return None if there is no experiment yet.

    Raises:
        ForgottenError: the experiment no longer exists, but this run has read decisions from it.
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
    """Raise :class:`ForgottenError` if the feed ends before the last decision that this run has read."""
    if feed.last_seq < ledger.cursor:
        raise ForgottenError(
            f"this run has read {ledger.cursor} decisions from experiment {name}, but the site at "
            f"{client.site_url} has only {feed.last_seq}: the site's database was replaced or restored to "
            f"an older state; {_remedy(ledger)}"
        )


def experiment_gone(client: FeedbackClient, name: str, ledger: Ledger) -> ForgottenError:
    """Return the error to raise if the site no longer has the run's experiment."""
    return ForgottenError(
        f"this run has read {ledger.cursor} decisions from experiment {name}, but the site at "
        f"{client.site_url} has no such experiment for this token: it was deleted, or the site has a "
        f"different database; {_remedy(ledger)}"
    )


def refuse_lost_database(state_dir: Path, ledger: Ledger) -> None:
    """Raise :class:`ForgottenError` if this machine's site has lost the database that the run uses.

    Call this before the site is started: starting the site would create a new database, and a backup can be
    restored only while there is no database.
    """
    database = state_dir.resolve() / "site.sqlite3"
    if ledger.cursor and not database.exists() and not os.environ.get("DATABASE_URL"):
        raise ForgottenError(
            f"this run has read {ledger.cursor} decisions from the site in {state_dir}, but the site's "
            f"database {database} is missing; {_remedy(ledger)}"
        )


def _compare(client: FeedbackClient, name: str, ledger: Ledger, feed: Feed) -> None:
    """Raise :class:`ForgottenError` if the site's last decisions differ from those in the ledger."""
    check_feed(client, name, ledger, feed)
    theirs = {item.seq: (item.comparison, item.decision) for item in feed.items}
    for seq, ours in ledger.outcomes(ledger.cursor - _LOOKED_BACK).items():
        if theirs.get(seq) != ours:
            raise ForgottenError(
                f"decision {seq} in experiment {name} on the site at {client.site_url} differs from the one "
                "that this run has read: the site's database was restored to an older state, and people have "
                f"labeled since; {_remedy(ledger)}"
            )


def _remedy(ledger: Ledger) -> str:
    run = ledger.path.parent
    if not (run / CONFIG_NAME).exists():
        return (
            f"restore the newest backup of the site, or start over in a different log_dir; {ledger.path} "
            "keeps the labels"
        )
    return (
        "restore the newest backup of the site, or start a new run from this run's policy: -n NAME --policy "
        f"{run} (teach export {run} FILE saves its labels)"
    )
