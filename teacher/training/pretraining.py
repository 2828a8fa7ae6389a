"""Pretraining: labels for comparisons of random behavior, and the first fit of the predictor."""

import time
from typing import cast

from agents.sac import SAC
from teacher import interrupts
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import SegmentPair
from teacher.envs.random_episodes import random_trajectories
from teacher.errors import pluralize
from teacher.queries.judges import value_of
from teacher.reporting.console import once_begun, progress, waiting
from teacher.settings.config import TeachConfig
from teacher.training.asking import POLL_SECONDS, fit, policy_segments, seed_of_new_segments
from teacher.training.run import SLOW_SECONDS, Run, Teaching

EXPLORATION_CHECKPOINT_SECONDS = 30.0
SPARE_SHARE, FEWEST_SPARE = 0.25, 3  # extra comparisons: share of the needed labels, minimum


def pretrain(run: Run, teaching: Teaching) -> bool:
    """Collect the pretraining labels and fit the predictor to them.

    Returns:
        True if pretraining completed; False if someone ended the experiment on the site before then.
    """
    if run.step < run.config.pretrain_steps:
        explore_states(run, teaching)
    needed = run.config.num_pretrain_labels
    ledger, collector = teaching.ledger, teaching.collector
    with progress(run.console.rich, "pretraining labels", needed, run.address) as show, run.timer.waiting():
        show(ledger.usable("pretraining"))
        while (answered := ledger.usable("pretraining")) < needed:
            interrupts.check()
            if collector.status.state == "finished":
                return False
            submit_first(run, teaching, needed + spare_pairs(run.config) - ledger.asked("pretraining"))
            received = teaching.receive()
            if not received:
                time.sleep(POLL_SECONDS)
            elif received.only_cant_tell:
                run.console.warn_once(received.warning(collector.status), about="can't tell")
            run.tell_waiting(needed - answered)
            run.console.show_trouble(collector.status)
            run.console.show_pause(collector.status)
            show(answered)
        show(answered)
    run.tell_waiting(None)
    teaching.receive()
    with progress(run.console.rich, "updates of the predictor", run.config.pretrain_iters) as show:
        fit(run, teaching, **first_limits(run.config), progress=once_begun(show))
    teaching.pretrained = True
    return True


def explore_states(run: Run, teaching: Teaching) -> None:
    """Train the agent on state entropy for ``pretrain_steps`` steps, so that the first segments are diverse.

    This is PEBBLE's unsupervised pretraining (Lee et al. 2021, section 4.1). The segments are added to the
    pool. Afterward the critics are reset, because they learned a different reward.
    """
    agent = cast(SAC, run.agent)  # the settings refuse --pretrain_steps with other agents
    steps = run.config.pretrain_steps
    with progress(run.console.rich, "steps of exploration", steps) as show:
        show(run.step)
        while True:
            interrupts.check()
            rollout = run.collect()
            trajectories = run.envs.drain()
            run.remember(trajectories)
            teaching.pool.extend(trajectories)
            metrics = agent.explore(rollout)
            show(min(run.step, steps))
            if run.step >= steps:  # save only after the critics were reset
                break
            run.save(at_most_every=EXPLORATION_CHECKPOINT_SECONDS)
    agent.reset_critics()
    run.report({}, metrics)
    run.save()


def submit_first(run: Run, teaching: Teaching, count: int) -> None:
    """Submit ``count`` new pretraining comparisons, along with attention checks."""
    if count < 1:
        return
    pairs = first_pairs(run, count)
    teaching.collector.submit(pairs, "pretraining", 0)
    pool = SegmentPool(run.segment_length, seed=run.config.seed)
    pool.add([segment for pair in pairs for segment in pair])
    pool.remember(pairs)
    teaching.submit_checks(pool, run.config.gold, value_of(run.config.error_model), run.step)


def first_limits(config: TeachConfig) -> dict[str, int]:
    """Return keyword arguments to :func:`fit` that limit the first fit's number of updates or epochs."""
    epochs = config.reward.initial_epochs
    return {"max_updates": config.pretrain_iters} if epochs is None else {"max_epochs": epochs}


def spare_pairs(config: TeachConfig) -> int:
    """Return how many comparisons to submit beyond the number of labels that pretraining needs.

    These extra comparisons keep pretraining from getting stuck when a labeler leaves without answering. They
    count toward ``n_labels``. With a scripted teacher, return 0.
    """
    if config.predictor != "human":
        return 0
    needed = config.num_pretrain_labels
    spare = max(FEWEST_SPARE, round(SPARE_SHARE * needed))
    return spare if config.n_labels is None else min(spare, config.n_labels - needed)


def first_pairs(run: Run, count: int) -> list[SegmentPair]:
    """Return ``count`` pairs of segments from episodes with random actions, using each segment once.

    If the run starts from a saved policy or demonstrations, half of the segments come from the run's current
    policy instead.
    """
    explored = None if run.teaching is None or not run.config.pretrain_steps else run.teaching.pool
    if explored is not None and len(explored) >= 2 * count:
        return explored.sample_pairs(count)
    seed = seed_of_new_segments(run)
    shown = policy_segments(run, count, seed) if run.config.warm else None
    missing = 2 * count - (len(shown) if shown else 0)
    pool = SegmentPool(run.segment_length, capacity=missing, seed=seed)
    with waiting(run.console.rich, after=SLOW_SECONDS) as show:

        def look(steps: int) -> None:
            interrupts.check()
            show(f"random actions: {len(pool)} of {pluralize(missing, 'segment')} ({steps:,} steps)")

        for trajectory in random_trajectories(run.task, seed, tell=look):
            pool.extend([trajectory])
            if len(pool) >= missing:
                break
    if shown:
        pool.absorb(shown)
    return pool.sample_pairs(count)
