"""The loop: collect, cut, ask, learn, relabel, update; one function a stage.

``train`` reads like the picture in the architecture page. Nothing is passed back up through callbacks, the
agent never holds a predictor, and the predictor is frozen while one rollout is used.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agents.rollout import Rollout
from teacher import interrupts
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import SegmentPair
from teacher.envs.random_episodes import policy_trajectories, random_trajectories
from teacher.envs.trajectory import Trajectory
from teacher.envs.trial import TRIAL_EPISODES
from teacher.errors import UndecidedError, counted
from teacher.queries.judges import value_of
from teacher.queries.selection import select_pairs, sure_pairs
from teacher.reward.correlation import correlation, rank_correlation
from teacher.reward.report import SETTLED, UNDECIDED
from teacher.settings.config import TeachConfig
from teacher.training.run import Run, Teaching, predicted_rewards, steps_of
from teacher.training.terminal import progress, waiting

CORRELATE_EVERY = 10
SPARE_SHARE, FEWEST_SPARE = 0.25, 3  # of pairs before training, beside those whose answers it waits for
LAST_QUESTIONS = 50  # times to ask again in the last round
EXPLORATIONS = 10  # after which episodes are taken to be too short for segments
POLL_SECONDS = 0.5
CHECKPOINT_SECONDS = 30.0
LAST_ANSWERS_SECONDS = 20.0  # without any, and nobody is waited for once training is over
LAST_CLIPS_SECONDS = 120.0  # the same, while clips are still being made
SLOW_SECONDS = 5.0  # without a word, and people ask themselves whether anything goes on


@dataclass(frozen=True, eq=False)
class Round:
    """One iteration of training, when it is over.

    Attributes:
        step: environment steps of training so far.
        values: what was reported of it, by TensorBoard tag; NaN means not known.
        run: to look at.
    """

    step: int
    values: Mapping[str, float]
    run: Run


def train(run: Run, on_round: Callable[[Round], None] | None = None) -> bool:
    """Train up to the last timestep; False where the site finished the experiment before.

    Args:
        run: goes on from where it is.
        on_round: called after each iteration.
    """
    teaching = run.teaching
    if teaching is not None and teaching.schedule_lost and not teaching.has_own_schedule:
        run.warn_once(
            "this run was given a schedule of labels from Python, which its checkpoint does not keep; it "
            f"goes on with --schedule {run.config.schedule or 'exponential'} unless run.teaching.schedule is "
            "set",
            about="schedule",
        )
    if teaching is not None and teaching.forgotten:
        run.warn_once(
            f"{teaching.ledger.path} holds {counted(teaching.forgotten, 'comparison')} fewer than when this "
            "run was saved; to have them again, stop and put back that file and the one beside it that ends "
            "in -wal",
            about="ledger",
        )
    if teaching is not None and not teaching.pretrained:
        if not pretrain(run, teaching):
            return False
        run.save()
    run.pace.tick(run.agent.total_steps)
    for iteration in itertools.count():
        interrupts.check()
        if run.agent.total_steps >= run.config.num_timesteps:
            break
        if teaching is not None and not hold(run, teaching):
            return False
        with run.crew.round():
            values = iterate(run, correlate=iteration % CORRELATE_EVERY == 0)
        run.save(at_most_every=CHECKPOINT_SECONDS)
        if on_round is not None:
            on_round(Round(run.agent.total_steps, values, run))
    if teaching is not None:
        take_last_answers(run, teaching)
    run.finish_videos()
    return True


def iterate(run: Run, *, correlate: bool) -> dict[str, float]:
    """One round: a rollout, the questions it raises, the answers so far, and an update on their reward.

    Returns what is reported of it.
    """
    started = time.monotonic()
    rollout = collect(run)
    trajectories = run.envs.drain()
    run.remember(trajectories)
    rewards, values, critic_epochs = rollout.rewards, {}, 0
    if run.teaching is not None:
        values = teach(run, run.teaching, trajectories)
        if run.teaching.predictor.follows:
            run.teaching.predictor.follow(steps_of(rollout, run.teaching.predictor, rollout.valid))
        critic_epochs = run.config.value_refit if run.teaching.changed else 0
        run.crew.share(run.teaching.predictor, critic_epochs)
        rewards = predicted_rewards(run.teaching.predictor, rollout)
        values["agent/predicted_reward_per_episode"] = run.steps_per_episode * float(
            rewards[rollout.valid].mean()
        )
        if correlate:
            values["predictor/correlation"] = episode_correlation(run, run.teaching)
    losses = run.agent.update(rollout, rewards, critic_epochs=critic_epochs)
    if run.teaching is not None:
        run.teaching.changed = False
        run.teaching.seconds += time.monotonic() - started
    return run.report(values, losses)


def collect(run: Run) -> Rollout:
    """The next rollout; where it takes long, as with pictures, how far it is."""
    total = run.agent.config.num_steps
    with waiting(run.console, after=SLOW_SECONDS) as show:
        return run.agent.collect(lambda steps: show(f"rollout: step {steps} of {total} in each environment"))


def teach(run: Run, teaching: Teaching, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Cut the new steps into segments, ask what is due, and learn from what was answered."""
    added = teaching.pool.extend(trajectories)
    values = {"predictor/rank_correlation": segment_correlation(teaching, added)}
    ask(run, teaching)
    teaching.receive()
    if run.agent.total_steps >= run.config.num_timesteps:
        ask_again(run, teaching)
    if teaching.stale:
        values |= learn(run, teaching)
    return values


def ask_again(run: Run, teaching: Teaching) -> None:
    """Ask about other pairs in place of those that a teacher could tell nothing about: no round follows."""
    with contextlib.suppress(UndecidedError):  # the run is over, and its end says to how many labels it came
        for _ in range(LAST_QUESTIONS):
            if ask(run, teaching) == 0:
                return
            teaching.receive()


def learn(run: Run, teaching: Teaching, **limits: Any) -> dict[str, float]:
    """Fit the predictor to the answers so far, and say where that failed, or settled what is read."""
    values = teaching.fit(**limits)
    if teaching.diverged:
        run.warn_once(
            "a fit of the reward predictor came to numbers that are none, and what it was before is kept; "
            "a smaller --reward.learning_rate helps",
            about="divergence",
        )
    if teaching.undecided:
        run.warn_once(UNDECIDED, about="undecided")
    if teaching.doubt:
        run.warn_once(teaching.doubt, about="doubt")
    if teaching.settled:
        run.console.print(SETTLED)
    return values


def first_limits(config: TeachConfig) -> dict[str, int]:
    """How far the first fit goes."""
    epochs = config.reward.initial_epochs
    return {"max_updates": config.pretrain_iters} if epochs is None else {"max_epochs": epochs}


def ask(run: Run, teaching: Teaching) -> int:
    """Submit as many comparisons of recent segments as are due and people have room for; returns how many."""
    ledger = teaching.ledger
    missing = run.labels_due() - ledger.asked()
    if run.config.predictor == "human":
        missing = min(missing, teaching.open_cap - ledger.open("training"))
    if missing > 0:
        explore(run, teaching, missing)
    pairs = select_pairs(teaching.pool, missing, run.config.queries, teaching.predictor)
    if pairs:
        teaching.collector.submit(pairs, "training", run.agent.total_steps)
        mix_in_gold(run, teaching, teaching.pool)
    if len({segment for pair in pairs for segment in pair}) < 2 * len(pairs):
        run.warn_once(
            f"{len(teaching.pool)} segments are few for {len(pairs)} comparisons, so some are in several; "
            "shorter ones (--segment_steps) help, or labels later in training (--schedule)",
            about="few segments",
        )
    return len(pairs)


def mix_in_gold(run: Run, teaching: Teaching, pool: SegmentPool) -> None:
    """Submit pairs of ``pool`` whose answer is known, up to their share of what was asked."""
    if run.config.gold == 0:
        return
    missing = math.floor(run.config.gold * teaching.ledger.asked()) - teaching.ledger.gold()
    pairs = sure_pairs(pool, missing, value_of(run.config.manner), run.config.queries)
    if pairs:
        teaching.collector.submit(pairs, "gold", run.agent.total_steps)


def explore(run: Run, teaching: Teaching, count: int) -> None:
    """Make the steps for questions only that ``count`` pairs should be mixed with, if any."""
    queries, pool = run.config.queries, teaching.pool
    missing = math.ceil(queries.exploration_frac * 2 * count * (queries.oversampling or 1))
    act = partial(run.agent.act, deterministic=False)
    for _ in range(EXPLORATIONS):
        if missing <= 0:
            break
        trajectories = teaching.explorer.explore(act, missing * pool.length)
        missing -= pool.extend(trajectories, explored=True)


def hold(run: Run, teaching: Teaching) -> bool:
    """Wait while the site says pause or people are too far behind; False where the site says finish."""
    with waiting(run.console) as show, run.pace.waiting():
        while True:
            interrupts.check()
            teaching.receive()
            state = teaching.collector.status.state
            needed = answers_needed(run, teaching)
            if state == "finished":
                return False
            if state == "running" and needed <= 0:
                break
            ask(run, teaching)
            run.tell_waiting(needed)
            run.tell_trouble()
            paused = run.tell_pause()
            show("paused on the site" if paused else f"waiting for you: {needed}  {teaching.address}")
            time.sleep(POLL_SECONDS)
        run.tell_pause()
    run.tell_waiting(None)
    return True


def take_last_answers(run: Run, teaching: Teaching) -> None:
    """Wait for what is still open while people answer it: their labels outlive the training."""
    ledger, news, news_at, paused_at = teaching.ledger, None, 0.0, -math.inf
    with waiting(run.console) as show:
        while run.config.holds_for_labels and teaching.collector.status.state != "finished":
            interrupts.check()
            refill(run, teaching)
            ask(run, teaching)
            teaching.receive()
            if ledger.open() == 0:
                break
            if run.tell_pause():
                news, paused_at = None, time.monotonic()
            elif (
                teaching.collector.status.active_labelers == 0
                and time.monotonic() - paused_at > LAST_ANSWERS_SECONDS  # when it is resumed, they come back
            ):
                break
            before, news = news, (ledger.open(), ledger.usable(), ledger.total())
            patience = LAST_CLIPS_SECONDS if ledger.on_their_way() else LAST_ANSWERS_SECONDS
            if news != before:
                news_at = time.monotonic()
            elif time.monotonic() - news_at > patience:
                break
            run.tell_waiting(ledger.open())
            rest = counted(ledger.open(), "answer")
            show(f"trained; taking the last {rest}  {teaching.address}  (Ctrl-C ends it)")
            time.sleep(POLL_SECONDS)
    run.tell_waiting(None)


def refill(run: Run, teaching: Teaching) -> None:
    """Add segments of the present policy to a pool that a resume left empty: no rollout follows."""
    missing = run.labels_due() - teaching.ledger.asked()
    if missing > 0 and len(teaching.pool) < 2:
        teaching.pool.absorb(policy_segments(run, 2 * missing, seed_of_new_segments(run)))


def answers_needed(run: Run, teaching: Teaching) -> int:
    """Answers without which the next rollout would run too far ahead of people; 0 or less: go on.

    Where nothing is open and there is nothing left to ask about (the pool is empty after a resume), only a
    rollout can bring new questions, so nothing is waited for.
    """
    if not run.config.holds_for_labels:
        return 0
    if teaching.ledger.open() == 0 and len(teaching.pool) < 2:
        return 0
    return run.labels_due() - teaching.open_cap - teaching.ledger.usable()


def pretrain(run: Run, teaching: Teaching) -> bool:
    """Ask about first behaviour, wait for the answers, and fit the predictor on them.

    Returns False where the site finished the experiment before.
    """
    needed = run.config.num_pretrain_labels
    ledger, collector = teaching.ledger, teaching.collector
    title = f"pretraining answers  {teaching.address}".rstrip()
    with progress(run.console, title, needed) as show, run.pace.waiting():
        while (answered := ledger.usable("pretraining")) < needed:
            interrupts.check()
            if collector.status.state == "finished":
                return False
            missing = needed + spare_pairs(run.config) - ledger.asked("pretraining")
            if missing > 0:
                pairs = first_pairs(run, missing)
                collector.submit(pairs, "pretraining", 0)
                pool = SegmentPool(run.segment_length, seed=run.config.seed)
                pool.add([segment for pair in pairs for segment in pair])
                pool.remember(pairs)
                mix_in_gold(run, teaching, pool)
            if not teaching.receive():
                time.sleep(POLL_SECONDS)
            elif teaching.silence is not None:
                run.warn_once(teaching.silence, about="silence")
            run.tell_waiting(needed - answered)
            run.tell_trouble()
            run.tell_pause()
            show(answered)
        show(answered)
    run.tell_waiting(None)
    teaching.receive()
    with progress(run.console, "training the predictor", run.config.pretrain_iters) as show:
        learn(run, teaching, **first_limits(run.config), progress=show)
    teaching.pretrained = True
    return True


def spare_pairs(config: TeachConfig) -> int:
    """Pairs to ask people beyond the labels that training waits for before it starts.

    So it does not wait for the one pair that is on the screen of somebody who has gone. They count among the
    labels in all.
    """
    if config.predictor != "human":
        return 0
    needed = config.num_pretrain_labels
    spare = max(FEWEST_SPARE, round(SPARE_SHARE * needed))
    return spare if config.n_labels is None else min(spare, config.n_labels - needed)


def first_pairs(run: Run, count: int) -> list[SegmentPair]:
    """``count`` pairs of different segments, none of them used twice, of episodes of random actions.

    Half of the segments of a run that begins from a policy are this policy's, its actions sampled.
    """
    seed = seed_of_new_segments(run)
    shown = policy_segments(run, count, seed) if run.config.warm else None
    missing = 2 * count - (len(shown) if shown else 0)
    pool = SegmentPool(run.segment_length, capacity=missing, seed=seed)
    with waiting(run.console, after=SLOW_SECONDS) as show:
        for trajectory in random_trajectories(run.task, seed):
            pool.extend([trajectory])
            if len(pool) >= missing:
                break
            show(f"random actions: {len(pool)} of {counted(missing, 'segment')}")
    if shown:
        pool.absorb(shown)
    return pool.sample_pairs(count)


def seed_of_new_segments(run: Run) -> int:
    """A seed that no comparison in the ledger came from, so that a replacement is a new segment."""
    return (run.config.seed + (run.teaching.ledger.total() if run.teaching else 0)) % 2**32


def policy_segments(run: Run, count: int, seed: int) -> SegmentPool:
    """``count`` segments of the present policy; fewer where its episodes are too short to be cut."""
    pool = SegmentPool(run.segment_length, capacity=count, seed=seed)
    too_short = 0
    for trajectory in policy_trajectories(run.task, seed, partial(run.agent.act, deterministic=False)):
        too_short = 0 if pool.extend([trajectory]) else too_short + 1
        if len(pool) >= count or too_short >= TRIAL_EPISODES:
            break
    return pool


def segment_correlation(teaching: Teaching, count: int) -> float:
    """Spearman's correlation of true and predicted sums of the newest segments, none of them asked about.

    Where a function says what is wanted, its values are the true ones.
    """
    if count < 2:
        return float("nan")
    fresh = teaching.pool.segments[-count:]
    return rank_correlation(teaching.predictor.segment_returns(fresh), list(map(teaching.goal, fresh)))


def episode_correlation(run: Run, teaching: Teaching) -> float:
    """The same as Pearson's, of the last episodes, by the present predictor."""
    predicted = [teaching.predictor.step_rewards(episode).sum() for episode in run.episodes]
    return correlation(predicted, list(map(teaching.goal, run.episodes)))
