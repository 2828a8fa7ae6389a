"""Waiting for people: training holds while their labels are too far behind, and takes the last ones."""

import math
import time

from teacher import interrupts
from teacher.errors import pluralize
from teacher.training.asking import ask
from teacher.training.pretraining import POLL_SECONDS, policy_segments, seed_of_new_segments
from teacher.training.run import Run, Teaching
from teacher.training.terminal import waiting

LAST_LABELS_SECONDS = 20.0  # without any, after which nobody is waited for once training is over
LAST_CLIPS_SECONDS = 120.0  # the same while clips are still being made


def hold(run: Run, teaching: Teaching) -> bool:
    """Wait while the site says pause or people are too far behind; False where the site says finish."""
    with waiting(run.console.rich) as show, run.timer.waiting():
        while True:
            interrupts.check()
            teaching.receive()
            status = teaching.collector.status
            needed = labels_needed(run, teaching)
            if status.state == "finished":
                return False
            if status.state == "running" and needed <= 0:
                break
            ask(run, teaching)
            run.tell_waiting(needed)
            run.console.show_trouble(teaching.collector.status)
            paused = run.console.show_pause(teaching.collector.status)
            show("paused on the site" if paused else f"waiting for you: {needed}  {run.address}")
            time.sleep(POLL_SECONDS)
        run.console.show_pause(teaching.collector.status)
    run.tell_waiting(None)
    return True


def labels_needed(run: Run, teaching: Teaching) -> int:
    """Return how many labels the next rollout waits for; 0 or less means go on.

    Where nothing is open and there is nothing left to ask about (the pool is empty after a resume), only a
    rollout can bring new comparisons, so nothing is waited for.
    """
    if not run.config.holds_for_labels:
        return 0
    if teaching.ledger.open() == 0 and len(teaching.pool) < 2:
        return 0
    return teaching.due(run.step) - teaching.open_limit - teaching.ledger.usable()


def take_last_labels(run: Run, teaching: Teaching) -> None:
    """Wait for the open comparisons for as long as people judge them: labels outlive the training."""
    ledger, news, news_at, paused_at = teaching.ledger, None, 0.0, -math.inf
    with waiting(run.console.rich) as show:
        while run.config.holds_for_labels and teaching.collector.status.state != "finished":
            interrupts.check()
            refill(run, teaching)
            ask(run, teaching)
            teaching.receive()
            if ledger.open() == 0:
                break
            status = teaching.collector.status
            if run.console.show_pause(status):
                news, paused_at = None, time.monotonic()
            elif status.active_labelers == 0 and time.monotonic() - paused_at > LAST_LABELS_SECONDS:
                break  # not right after a pause: when the run is resumed, they come back
            before, news = news, (ledger.open(), ledger.usable(), ledger.total())
            patience = LAST_CLIPS_SECONDS if ledger.on_their_way() else LAST_LABELS_SECONDS
            if news != before:
                news_at = time.monotonic()
            elif time.monotonic() - news_at > patience:
                break
            run.tell_waiting(ledger.open())
            rest = pluralize(ledger.open(), "answer")
            show(f"trained; taking the last {rest}  {run.address}  (Ctrl-C ends it)")
            time.sleep(POLL_SECONDS)
    run.tell_waiting(None)


def refill(run: Run, teaching: Teaching) -> None:
    """Add segments of the current policy to a pool that a resume left empty: no rollout follows."""
    missing = teaching.missing(run.step)
    if missing > 0 and len(teaching.pool) < 2:
        teaching.pool.absorb(policy_segments(run, 2 * missing, seed_of_new_segments(run)))
