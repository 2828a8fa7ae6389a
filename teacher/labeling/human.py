"""Collector of people's labels: sends comparisons to the labeling site, and reads the decisions."""

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from uuid import uuid4

from teacher.clips.backoff import Backoff, call_with_retries
from teacher.data.ledger import Ledger, Question, Role
from teacher.data.preferences import Preference
from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.errors import (
    ConfigError,
    ForgottenError,
    SiteRefusedError,
    SiteUnreachableError,
    StorageError,
    TeacherError,
)
from teacher.labeling.client import (
    ALWAYS_KNOWN,
    Experiment,
    ExperimentSettings,
    Feed,
    FeedbackClient,
    Point,
)
from teacher.labeling.explained import Explainer, Predictions
from teacher.labeling.publisher import EpisodeVideoUploader, Publisher, PublishTarget
from teacher.queries.collector import Collector, CollectorStatus
from teacher.queries.kinds import kinds_of
from teacher.queries.kinds.base import Check
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config_files import CONFIG_NAME
from teacher.settings.options import KindName

POLL_SECONDS = 2.5
_START_DELAYS = (0.5, 1.0, 2.0, 4.0)  # seconds between tries to open the experiment
_FINISH_DELAYS = (1.0, 2.0, 4.0)  # seconds between tries to finish the experiment
_REVIVED_SECONDS = 2.0  # maximum seconds between tries while this machine's site restarts
_MAX_POINTS = 200  # per request
_MAX_POINTS_KEPT = 20_000  # queued while the site is unreachable
_CLOSE_SECONDS = 10.0
_LOOKED_BACK = 100  # number of decisions to compare


class HumanCollector(Collector):
    """Collects people's labels through the labeling site; a background thread does all slow work.

    The constructor creates or resumes the experiment on the site. It also publishes comparisons that an
    earlier process of this run left unregistered. A permanent error (a revoked token, a full disk, clips that
    can't be rendered) stops the thread and is raised by the next call to :meth:`receive` or :meth:`submit`.

    Attributes:
        experiment: the experiment as the site reported it when the collector was created.
        asked_anew: number of comparisons to register again because the site lost the experiment before this
            run had read any decisions.
    """

    def __init__(self, publication: PublishTarget, revive: Callable[[], None] | None = None) -> None:
        """Create or resume the experiment, and start the background thread.

        Args:
            revive: function that restarts this machine's site when it is unreachable; None for a site on a
                different machine.

        Raises:
            SiteRefusedError: the token is invalid, or a different run uses the experiment's name.
            SiteUnreachableError: the site is unreachable, even after a few retries.
            ConfigError: the site doesn't know the kind of the questions, or that of open ones in the ledger.
            ForgottenError: the site has lost decisions that this run read; nothing was created on the site.
        """
        super().__init__(publication.ledger)
        unfinished = self._ledger.unfinished()
        self._client, self._settings = publication.client, publication.settings
        self._revive = revive
        asked = kinds_of(publication.settings.feedback)
        kinds = {kind.name for kind in asked} | {each.kind for each in unfinished}
        call_with_retries(lambda: require_kinds(self._client, kinds), _START_DELAYS, revive)
        self.experiment, self.asked_anew = call_with_retries(
            lambda: take_up(self._client, self._settings, self._ledger), _START_DELAYS, revive
        )
        # self._lock also guards the attributes up to the next blank line.
        self._submitted: deque[Question] = deque()
        self._points: deque[Point] = deque(maxlen=_MAX_POINTS_KEPT)
        self._waiting_for: int | None = None
        self._predicted: Predictions | None = None
        self._predicted_posted = True

        self._posted_waiting_for: int | None = None
        self._feed: Feed | None = None
        self._next_poll = 0.0
        self._missing = 0
        self._has_left = False
        self._to_store = Backoff()
        self._to_site = Backoff() if revive is None else Backoff(_REVIVED_SECONDS)
        self._trouble: Exception | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        on_their_way = self._ledger.path.parent / "clips-on-their-way"
        self._videos = EpisodeVideoUploader(self._settings.name, publication.storage, self._client)
        self._publisher = Publisher(publication, on_their_way, self._wake.set)
        self._explainer = Explainer(self._ledger.path.parent / "films")
        self._explainer.ask(unfinished)
        self._publisher.add_again(unfinished)
        self._thread = threading.Thread(target=self._work, name="human-collector", daemon=True)
        self._thread.start()

    def submit(
        self,
        questions: Sequence[tuple[Segment, ...]],
        phase: Role,
        step: int,
        kind: KindName = "pair",
        reasons: Sequence[str] = (),
    ) -> None:
        """Write questions to the ledger and queue them for publication.

        Raises:
            Exception: the error that stopped the background thread, if it has stopped.
        """
        self._raise_trouble()
        written = self._write(questions, phase, step, kind)
        if reasons:
            written = [replace(each, reason=reason) for each, reason in zip(written, reasons, strict=True)]
        self._queue(written)

    def submit_checks(self, checks: Sequence[Check], step: int, kind: KindName = "pair") -> None:
        """Write attention checks and their known answers to the ledger, and queue them for publication."""
        self._raise_trouble()
        written = [Question(uuid4(), items, "gold", step, kind, known) for items, known in checks]
        self._ledger.write(written)
        self._queue(written)

    def _queue(self, questions: Sequence[Question]) -> None:
        self._explainer.ask(questions)
        with self._lock:
            self._submitted.extend(questions)
        self._wake.set()

    def receive(self) -> list[Preference]:
        """Return the preferences decided or revised since the last call.

        Raises:
            Exception: the error that stopped the background thread, if it has stopped.
        """
        self._raise_trouble()
        return super().receive()

    @property
    def status(self) -> CollectorStatus:
        """Status of the experiment and its labelers, as last reported by the site."""
        feed = self._feed
        return CollectorStatus(
            state=self.experiment.state if feed is None else feed.state,
            active_labelers=None if feed is None else feed.active_labelers,
            failed=self._publisher.failed,
            away=self._to_site.away or self._to_store.away,
        )

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Queue training progress to show on the site; NaN and infinite values are dropped."""
        finite = {tag: float(value) for tag, value in point.items() if math.isfinite(value)}
        with self._lock:
            if finite:
                self._points.append(Point(step, finite))
            self._waiting_for = None if waiting_for is None else max(0, waiting_for)

    def show(self, video: Path, step: int, episode: Trajectory) -> None:
        """Queue an episode video to show to labelers."""
        self._explainer.add(step, episode)
        self._videos.offer(video, step)
        self._wake.set()

    def explain(self, predictor: RewardPredictor, fits: int, step: int) -> None:
        """Queue the predicted rewards of all films and the newest questions, if they changed."""
        predicted = self._explainer.explain(predictor, fits, step)
        if predicted is not None:
            with self._lock:
                self._predicted, self._predicted_posted = predicted, False

    def finish(self) -> None:
        """Stop collecting, and mark the experiment as finished on the site.

        Raises:
            SiteUnreachableError: the site is unreachable, even after a few retries.
            SiteRefusedError: the site refused to finish the experiment.
            ForgottenError: the experiment was deleted on the site.
        """
        self._has_left = True  # a finished experiment needs no goodbye
        self.close()
        self._waiting_for = None
        call_with_retries(self._finish_experiment, _FINISH_DELAYS, self._revive)

    def _finish_experiment(self) -> None:
        try:
            self._read_feed()  # finishing a deleted experiment would create it again
        except SiteRefusedError as error:
            raise self._as_forgotten_if_deleted(error) from error
        with contextlib.suppress(StorageError):  # the last video may be newer than the thread's last round
            self._videos.upload()
        self._videos.announce()
        self._predicted_posted = False
        self._post_points()
        self._client.put_experiment(self._settings, state="finished")
        while self._read_feed().items:
            pass  # reads decisions that came after the last poll

    def close(self) -> None:
        """Stop the background thread and tell the site; unregistered comparisons stay in the ledger."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
        self._publisher.close()
        if not (self._thread.is_alive() or self._has_left or self._to_site.away):
            self._has_left = True
            with contextlib.suppress(SiteUnreachableError, SiteRefusedError):  # the site will notice anyway
                self._client.say_goodbye(self._settings.name, list(islice(self._points, _MAX_POINTS)))

    def _as_forgotten_if_deleted(self, error: SiteRefusedError) -> TeacherError:
        if error.status != HTTPStatus.NOT_FOUND:
            return error
        return _experiment_gone(self._client, self._settings.name, self._ledger)

    def _raise_trouble(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    # The methods below run in the background thread.

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                self._round()
                self._wake.wait(self._seconds_to_next())
        except SiteRefusedError as error:
            self._trouble = self._as_forgotten_if_deleted(error)
        except Exception as error:
            self._trouble = error

    def _round(self) -> None:
        with self._lock:
            submitted = list(self._submitted)
            self._submitted.clear()
        self._publisher.add(submitted)
        if not self._to_store.seconds_left():
            try:
                self._publisher.upload()
                self._videos.upload()
                self._to_store.succeeded()
            except StorageError as error:
                self._to_store.failed(error)
        self._publisher.render()
        if not self._to_site.seconds_left():
            try:
                # A list, so that both are called. The site knows predicted rewards only of what it knows.
                if any([self._publisher.register(), self._videos.announce()]):
                    self._predicted_posted = False
                self._poll_and_report()
                self._to_site.succeeded()
            except (SiteUnreachableError, SiteRefusedError) as error:
                if isinstance(error, SiteRefusedError) and error.by_site:
                    raise
                self._to_site.failed(error)
                self._posted_waiting_for = None  # the site forgets the number while the trainer is away
                if self._revive is not None:
                    self._revive()

    def _seconds_to_next(self) -> float:
        """Return the seconds until the next poll or retry; other events wake the thread earlier."""
        to_poll = max(self._next_poll - time.monotonic(), self._to_site.seconds_left())
        return max(0.0, min(to_poll, self._to_store.seconds_left() or to_poll))

    def _poll_and_report(self) -> None:
        if time.monotonic() < self._next_poll:
            return
        feed = self._read_feed()
        self._post_points()
        if not feed.items:  # after items there may be more, so poll again at once
            self._reconcile(feed)
            self._next_poll = time.monotonic() + POLL_SECONDS

    def _read_feed(self) -> Feed:
        feed = self._client.decisions(self._settings.name, after=self._ledger.cursor)
        _check_feed(self._client, self._settings.name, self._ledger, feed)
        if feed.items:
            with self._lock:
                self._ledger.record(feed.items, cursor=feed.items[-1].seq)
                self._follow(self._ledger.answered(item.comparison for item in feed.items))
        self._feed = feed
        return feed

    def _reconcile(self, feed: Feed) -> None:
        """Synchronize the ledger with the site if the site has fewer open comparisons than expected.

        Without this, training would wait forever for the missing comparisons. Comparisons that were canceled
        on the site are closed in the ledger. Comparisons that are not on the site, because its database was
        replaced, are registered again.
        """
        missing = self._missing_from(feed)
        if missing > 0 and missing != self._missing:
            statuses = self._client.statuses(self._settings.name)
            cancelled = [uuid for uuid, status in statuses.items() if status == "cancelled"]
            self._ledger.set_status(cancelled, "cancelled")
            registered = self._ledger.unfinished("registered")
            self._publisher.add_again([item for item in registered if item.uuid not in statuses])
            missing = self._missing_from(feed)
        self._missing = missing

    def _missing_from(self, feed: Feed) -> int:
        return self._ledger.open() - len(self._submitted) - len(self._publisher) - feed.open

    def _post_points(self) -> None:
        while True:
            with self._lock:
                points = list(islice(self._points, _MAX_POINTS))
                waiting_for = self._waiting_for
                predicted = None if self._predicted_posted else self._predicted
                self._predicted_posted = True
            if not points and waiting_for == self._posted_waiting_for and predicted is None:
                return
            try:
                self._client.post_points(self._settings.name, points, waiting_for, predicted)
            except SiteUnreachableError:
                self._predicted_posted = False
                raise
            self._posted_waiting_for = waiting_for
            with self._lock:
                for _ in points:
                    self._points.popleft()


# Checks that the site still has a run's experiment and all decisions that the run has read.
#
# A trainer reads only the decisions after its cursor. If the experiment was deleted, or the database replaced
# or restored to an older state, the trainer would miss new decisions. So it stops, without creating anything
# on the site.


def require_kinds(client: FeedbackClient, kinds: Collection[str]) -> None:
    """Raise :class:`ConfigError` if the site doesn't know one of these kinds of questions."""
    others = {*kinds} - ALWAYS_KNOWN
    unknown = others - client.kinds() if others else None
    if unknown:
        raise ConfigError(
            f"the labeling site at {client.site_url} doesn't know {', '.join(sorted(unknown))} questions; "
            "update the site, or use --feedback pair"
        )


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
            raise _experiment_gone(client, name, ledger) from error
        return None


def _check_feed(client: FeedbackClient, name: str, ledger: Ledger, feed: Feed) -> None:
    """Raise :class:`ForgottenError` if the feed ends before the last decision that this run has read."""
    if feed.last_seq < ledger.cursor:
        raise ForgottenError(
            f"this run has read {ledger.cursor} decisions from experiment {name}, but the site at "
            f"{client.site_url} has only {feed.last_seq}: the site's database was replaced or restored to "
            f"an older state; {_remedy(ledger)}"
        )


def _experiment_gone(client: FeedbackClient, name: str, ledger: Ledger) -> ForgottenError:
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
    _check_feed(client, name, ledger, feed)
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
