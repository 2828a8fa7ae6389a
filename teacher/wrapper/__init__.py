"""Learning from preferences inside any library that steps a Gymnasium environment."""

from teacher.people import SiteOptions
from teacher.wrapper.settings import WrapperConfig
from teacher.wrapper.single import HumanPreferencesEnvWrapper
from teacher.wrapper.vector import HumanPreferencesVectorWrapper, replayable

__all__ = [
    "HumanPreferencesEnvWrapper",
    "HumanPreferencesVectorWrapper",
    "SiteOptions",
    "WrapperConfig",
    "replayable",
]
