"""Functions that submit comparisons before and during training, wait for labels, and fit the predictor."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from agents.sac import SAC
from teacher import interrupts
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.random_episodes import policy_trajectories, random_trajectories
from teacher.envs.trajectory import Trajectory
from teacher.envs.trial import TRIAL_EPISODES
from teacher.errors import pluralize
from teacher.queries.judges import value_of
from teacher.queries.kinds.base import Kind
from teacher.reporting.console import once_begun, progress, waiting
from teacher.settings.config import TeachConfig
from teacher.training.run import SLOW_SECONDS, Run, Teaching

POLL_SECONDS = 0.5
EXPLORATIONS = 10  # attempts before episodes are considered too short for segments
LAST_LABELS_SECONDS = 20.0  # after training, stop waiting when no label has arrived for this long
LAST_CLIPS_SECONDS = 120.0  # replaces LAST_LABELS_SECONDS while clips are still being rendered


def ask(run: Run, teaching: Teaching) -> Sequence[tuple[Segment, ...]]:
    """Submit the comparisons that are due, and return the items of the submitted questions.

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
    return submitted.questions


def explore(run: Run, teaching: Teaching, count: int) -> None:
    """Add explorer segments to the pool for the next ``count`` comparisons.

    ``exploration_frac`` determines how many segments are added. The agent doesn't train on them.
    """
    queries, pool = run.config.queries, teaching.pool
    missing = math.ceil(queries.exploration_frac * teaching.size * count * (queries.oversampling or 1))
    for _ in range(EXPLORATIONS):
        if missing <= 0 or run.opened.explorer is None:
            break
        trajectories = run.opened.explorer.explore(run.act, missing * pool.length)
        missing -= pool.extend(trajectories, explored=True)


def fit(run: Run, teaching: Teaching, **limits: Any) -> dict[str, float]:
    """Fit the predictor to all labels, print any warnings, and return metrics keyed by TensorBoard tag."""
    report = teaching.fit(**limits)
    for about, problem in report.problems("--reward.learning_rate").items():
        run.console.warn_once(problem, about)
    if report.choice:
        run.console.print(report.choice)
    return report.scalars | (teaching.study.points(teaching.ledger) if teaching.study else {})


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
    if teaching.ledger.open() == 0 and len(teaching.pool) < teaching.size:
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
    size = teaching.size
    if missing > 0 and len(teaching.pool) < size:
        teaching.pool.absorb(policy_segments(run, size * missing, seed_of_new_segments(run)))


def seed_of_new_segments(run: Run) -> int:
    """Return a seed that changes with the number of comparisons, so that segments are new each time."""
    return (run.config.seed + (run.teaching.ledger.total() if run.teaching else 0)) % 2**32


def policy_segments(run: Run, count: int, seed: int) -> SegmentPool:
    """Return ``count`` segments of the current policy, or fewer if its episodes are too short for them."""
    play = partial(policy_trajectories, run.task, seed, run.act)
    return collect_segments(run, count, seed, play, "current policy", TRIAL_EPISODES)


def collect_segments(
    run: Run,
    count: int,
    seed: int,
    play: Callable[..., Iterable[Trajectory]],
    about: str,
    most_too_short: float = math.inf,
) -> SegmentPool:
    """Play episodes until ``count`` segments are collected, and return them as a pool.

    Stop early if ``most_too_short`` episodes in a row are shorter than a segment.
    """
    pool = SegmentPool(run.segment_length, capacity=count, seed=seed)
    too_short = 0
    with waiting(run.console.rich, after=SLOW_SECONDS) as show:

        def look(steps: int) -> None:
            interrupts.check()
            show(f"{about}: {len(pool)} of {pluralize(count, 'segment')} ({steps:,} steps)")

        for trajectory in play(tell=look):
            too_short = 0 if pool.extend([trajectory]) else too_short + 1
            if len(pool) >= count or too_short >= most_too_short:
                break
    return pool


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
    questions: list[tuple[Segment, ...]] = []
    for kind, share in teaching.shares(count):
        chosen = first_questions(run, kind, share)
        teaching.collector.submit(chosen, "pretraining", 0, kind.name, ["random"] * len(chosen))
        questions += chosen
    pool = SegmentPool(run.segment_length, seed=run.config.seed)
    pool.add([item for items in questions for item in items])
    pool.remember(questions)
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


def first_questions(run: Run, kind: Kind, count: int) -> Sequence[tuple[Segment, ...]]:
    """Return the items of ``count`` questions about episodes with random actions, using each segment once.

    If the run starts from a saved policy or demonstrations, half of the segments come from the run's current
    policy instead.
    """
    explored = None if run.teaching is None or not run.config.pretrain_steps else run.teaching.pool
    wanted = kind.size * count
    if explored is not None and len(explored) >= wanted:
        return kind.select(explored, count, None, None)
    seed = seed_of_new_segments(run)
    shown = policy_segments(run, wanted // 2, seed) if run.config.warm else None
    missing = wanted - (len(shown) if shown else 0)
    play = partial(random_trajectories, run.task, seed)
    pool = collect_segments(run, missing, seed, play, "random actions")
    if shown:
        pool.absorb(shown)
    return kind.select(pool, count, None, None)
