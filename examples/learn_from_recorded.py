"""Learn a reward from recorded episodes, without an agent, and evaluate it on different episodes.

The labels come from a scripted teacher with a 10 % error rate; any function of two segments can be used.
"""

import sys
from itertools import islice

from teacher import (
    ErrorModel,
    OfflineConfig,
    ScriptedTeacher,
    SegmentPool,
    describe_task,
    learn_reward,
    random_trajectories,
    rank_correlation,
)

SHORT = "--short" in sys.argv

task = describe_task("Pendulum-v1")
seen = list(islice(random_trajectories(task, seed=1), 10 if SHORT else 100))
judge = ScriptedTeacher(ErrorModel.parse("mistake:0.1"), seed=1)
lesson = OfflineConfig(n_labels=30 if SHORT else 400, segment_steps=20, max_updates=300 if SHORT else 10_000)
predictor = learn_reward(seen, judge, task.observation_space, task.action_space, lesson)

others = SegmentPool(length=20, seed=2)
others.extend(islice(random_trajectories(task, seed=2), 20))
true_returns = [segment.true_return for segment in others.segments]
correlation = rank_correlation(predictor.segment_returns(others.segments), true_returns)
print(f"correlation of predicted and true returns over {len(true_returns)} other segments: {correlation:.2f}")
