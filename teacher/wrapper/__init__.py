"""Gymnasium wrappers that replace an environment's reward with one learned from preferences."""

from teacher.envs.horizon import FixedHorizon
from teacher.labeling.people import SiteOptions
from teacher.wrapper.settings import WrapperConfig
from teacher.wrapper.single import HumanPreferencesEnvWrapper
from teacher.wrapper.vector import HumanPreferencesVectorWrapper, replayable

__all__ = [
    "FixedHorizon",
    "HumanPreferencesEnvWrapper",
    "HumanPreferencesVectorWrapper",
    "SiteOptions",
    "WrapperConfig",
    "replayable",
]
