"""From a rollout to a reward: queries, labels, reward predictor and the training loop around them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from teacher.wrapper import FixedHorizon, HumanPreferencesEnvWrapper, HumanPreferencesVectorWrapper

__all__ = ["FixedHorizon", "HumanPreferencesEnvWrapper", "HumanPreferencesVectorWrapper"]


def __getattr__(name: str) -> Any:
    """The wrappers, imported when they are asked for: they bring torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from teacher import wrapper  # noqa: PLC0415

    return getattr(wrapper, name)
