"""Environments: tasks, their reward and termination rules, and replayable episodes.

Importing this package registers its environments with Gymnasium.
"""

from teacher.envs.atari import GAMES, HORIZON
from teacher.envs.families import register_tasks
from teacher.envs.suites import register

register_tasks()
for game in GAMES:
    register(f"teacher/{game}-v1", "teacher.envs.atari:AtariGame", HORIZON, game=game)
register("teacher/MovingDot-v1", "teacher.envs.dot:MovingDot", 40)
register("teacher/Collect-v1", "teacher.envs.collect:CollectGame", 50)
