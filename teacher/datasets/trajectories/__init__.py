"""Reading and relabeling of trajectory files from RL-Teacher and other programs."""

from teacher.datasets.trajectories.files import load_trajectories, relabel
from teacher.datasets.trajectories.recording import Recording, as_demonstrations

__all__ = ["Recording", "as_demonstrations", "load_trajectories", "relabel"]
