"""Functions that submit comparisons during training and fit the reward predictor to the labels."""

import math
from collections.abc import Sequence
from typing import Any

from teacher.data.segments import SegmentPair
from teacher.queries.judges import value_of
from teacher.training.run import Run, Teaching

EXPLORATIONS = 10  # attempts before episodes are considered too short for segments


def ask(run: Run, teaching: Teaching) -> Sequence[SegmentPair]:
    """Submit the comparisons that are due, and return the submitted segment pairs.

    With human labelers, submit only as many as the limit on open comparisons allows.
    """
    missing = teaching.missing(run.step)
    if run.config.predictor == "human":
        missing = min(missing, teaching.open_limit - teaching.ledger.open("training"))
    if missing > 0:
        explore(run, teaching, missing)
    submitted = teaching.submit(missing, run.step, predictor=teaching.predictor)
    if submitted:
        teaching.submit_checks(teaching.pool, run.config.gold, value_of(run.config.error_model), run.step)
    if submitted.repeats_segments:
        remedy = "use shorter segments (--segment_steps), or ask later in training (--schedule)"
        run.console.warn_once(submitted.warning(remedy), about="few segments")
    return submitted.pairs


def explore(run: Run, teaching: Teaching, count: int) -> None:
    """Add explorer segments to the pool for the next ``count`` comparisons.

    ``exploration_frac`` determines how many segments are added. The agent doesn't train on them.
    """
    queries, pool = run.config.queries, teaching.pool
    missing = math.ceil(queries.exploration_frac * 2 * count * (queries.oversampling or 1))
    for _ in range(EXPLORATIONS):
        if missing <= 0 or run.explorer is None:
            break
        trajectories = run.explorer.explore(run.act, missing * pool.length)
        missing -= pool.extend(trajectories, explored=True)


def fit(run: Run, teaching: Teaching, **limits: Any) -> dict[str, float]:
    """Fit the predictor to all labels, print any warnings, and return metrics keyed by TensorBoard tag."""
    report = teaching.fit(**limits)
    for about, problem in report.problems("--reward.learning_rate").items():
        run.console.warn_once(problem, about)
    if report.choice:
        run.console.print(report.choice)
    return report.scalars
