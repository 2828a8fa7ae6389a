"""Trajectories recorded by this and other programs: reading, and relabeling with other rewards."""

from teacher.datasets.trajectories.files import load_trajectories, relabel
from teacher.datasets.trajectories.recording import Recording, as_demonstrations

__all__ = ["Recording", "as_demonstrations", "load_trajectories", "relabel"]
