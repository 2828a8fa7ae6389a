"""The training loop: collect a rollout, submit comparisons, fit the predictor, update the agent."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from teacher import interrupts
from teacher.envs.trajectory import Trajectory
from teacher.reward.predictor import relabeled
from teacher.training.asking import ask, fit, hold, pretrain, take_last_labels
from teacher.training.parts import predicted_rewards, steps_of
from teacher.training.run import Run, Teaching

CORRELATE_EVERY = 10  # rounds
CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True, eq=False)
class Round:
    """A finished training iteration.

    Attributes:
        step: total number of environment steps trained on by the end of the iteration.
        values: the iteration's metrics keyed by TensorBoard tag; NaN for metrics that are not available.
    """

    step: int
    values: Mapping[str, float]
    run: Run


def train(run: Run, on_round: Callable[[Round], None] | None = None) -> bool:
    """Train a run from its current step to ``num_timesteps``.

    Args:
        on_round: function to call after each iteration.

    Returns:
        True if training completed; False if someone ended the experiment on the site before then.
    """
    run.begin()
    run.warn_of_losses()
    teaching = run.teaching
    if teaching is not None and not teaching.pretrained:
        if not pretrain(run, teaching):
            return False
        run.save()
    run.timer.tick(run.step)
    for iteration in itertools.count():
        interrupts.check()
        if run.is_over:
            break
        if teaching is not None and not hold(run, teaching):
            return False
        with run.followers.round():
            values = iterate(run, correlate=iteration % CORRELATE_EVERY == 0)
        run.save(at_most_every=CHECKPOINT_SECONDS)
        if on_round is not None:
            on_round(Round(run.step, values, run))
    if teaching is not None:
        take_last_labels(run, teaching)
    if run.opened.videos is not None:
        run.opened.videos.finish()
        if teaching is not None:
            teaching.explain(run.step)  # includes the last video
    return True


def iterate(run: Run, *, correlate: bool) -> dict[str, float]:
    """Run one training iteration and return its metrics keyed by TensorBoard tag.

    Args:
        correlate: True to also compute the correlation between predicted returns and goal values over
            recent episodes.
    """
    started, teaching, values = time.monotonic(), run.teaching, dict[str, float]()
    rollout = run.collect()
    trajectories = run.envs.drain()
    run.remember(trajectories)
    if teaching is None:
        losses = run.agent.update(rollout, rollout.rewards)
        return run.report(values, losses)
    values = teach(run, teaching, trajectories)
    if teaching.predictor.follows:
        teaching.predictor.follow(steps_of(rollout, teaching.predictor, rollout.valid))
    critic_epochs = run.config.value_refit if teaching.fits > run.fits_used else 0
    run.followers.share(teaching.predictor, critic_epochs)
    if teaching.fits > run.fits_used:
        run.agent.relabel(partial(relabeled, teaching.predictor))
    rewards = predicted_rewards(teaching.predictor, rollout)
    mean_reward = float(rewards[rollout.valid].mean())
    values["agent/predicted_reward_per_episode"] = run.statistics.mean("length") * mean_reward
    if correlate:
        values["predictor/correlation"] = run.statistics.episode_correlation(teaching.predictor)
    losses = run.agent.update(rollout, rewards, critic_epochs=critic_epochs)
    teaching.explain(run.step)
    run.fits_used = teaching.fits
    teaching.seconds += time.monotonic() - started
    return run.report(values, losses)


def teach(run: Run, teaching: Teaching, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Add new segments to the pool, submit comparisons that are due, and fit the predictor to new labels.

    Returns:
        Metrics keyed by TensorBoard tag.
    """
    added = teaching.pool.extend(trajectories)
    newest = teaching.pool.newest(added)  # not in any comparison yet
    correlation = run.statistics.segment_correlation(teaching.predictor, newest)
    values = {"predictor/rank_correlation": correlation}
    ask(run, teaching)
    if run.is_over:
        teaching.submit_rest(partial(ask, run, teaching))
    teaching.receive()
    return values | fit(run, teaching) if teaching.stale else values
