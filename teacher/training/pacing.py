"""Functions that wait for labels from people, both during training (if labels are late) and after it."""

import math
import time

from teacher import interrupts
from teacher.errors import pluralize
from teacher.reporting.console import waiting
from teacher.training.asking import ask
from teacher.training.pretraining import POLL_SECONDS, policy_segments, seed_of_new_segments
from teacher.training.run import Run, Teaching

LAST_LABELS_SECONDS = 20.0  # after training, stop waiting when no label has arrived for this long
LAST_CLIPS_SECONDS = 120.0  # replaces LAST_LABELS_SECONDS while clips are still being rendered


def hold(run: Run, teaching: Teaching) -> bool:
    """Wait while the run is paused or labels are too far behind schedule.

    Returns:
        True if training may continue; False if someone ended the experiment on the site.
    """
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
            show(
                "paused on the site" if paused else f"waiting for {pluralize(needed, 'label')}  {run.address}"
            )
            time.sleep(POLL_SECONDS)
        run.console.show_pause(teaching.collector.status)
    run.tell_waiting(None)
    return True


def labels_needed(run: Run, teaching: Teaching) -> int:
    """Return how many more labels the next rollout must wait for; 0 or less if it need not wait.

    After a resume, there may be no open comparisons and no segments in the pool. Training then continues,
    because only a rollout can provide segments for new comparisons.
    """
    if not run.config.holds_for_labels:
        return 0
    if teaching.ledger.open() == 0 and len(teaching.pool) < 2:
        return 0
    return teaching.due(run.step) - teaching.open_limit - teaching.ledger.usable()


def take_last_labels(run: Run, teaching: Teaching) -> None:
    """After training, wait for labels on the open comparisons; give up once labels stop arriving."""
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
                break  # but not soon after a pause, to give labelers time to return
            before, news = news, (ledger.open(), ledger.usable(), ledger.total())
            patience = LAST_CLIPS_SECONDS if ledger.on_their_way() else LAST_LABELS_SECONDS
            if news != before:
                news_at = time.monotonic()
            elif time.monotonic() - news_at > patience:
                break
            run.tell_waiting(ledger.open())
            rest = pluralize(ledger.open(), "label")
            show(f"waiting for the last {rest}", run.address, "(Ctrl-C exits)")
            time.sleep(POLL_SECONDS)
    run.tell_waiting(None)


def refill(run: Run, teaching: Teaching) -> None:
    """If the pool is empty after a resume, fill it with segments from the current policy.

    Called after training, when no further rollouts will add segments.
    """
    missing = teaching.missing(run.step)
    if missing > 0 and len(teaching.pool) < 2:
        teaching.pool.absorb(policy_segments(run, 2 * missing, seed_of_new_segments(run)))
