"""Environments: tasks, their reward and termination rules, and replayable episodes.

Importing this package registers its environments with Gymnasium.
"""

from teacher.envs.atari import register_games
from teacher.envs.families import register_tasks
from teacher.envs.own import register_own

register_tasks()
register_own()
register_games()
