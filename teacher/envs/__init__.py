"""Tasks, their reward and termination rules, and episodes that can be replayed."""

from teacher.envs.families import register_tasks

register_tasks()
