"""Predictor settings that have no effect in a given use, refused instead of ignored."""

from typing import Any

from gymnasium import spaces

from teacher.reward.images import is_image_space
from teacher.settings.options import RewardConfig
from teacher.settings.unused import reject_unused


def reject_unused_of_network(
    config: RewardConfig,
    observation_space: spaces.Space[Any],
    *,
    own_network: bool = False,
    prefix: str = "reward.",
) -> None:
    """Raise :class:`ConfigError` for a setting that the kind of network in use does not have.

    Args:
        config: the settings.
        observation_space: of one environment; decides whether networks are convolutional.
        own_network: the user's own function builds the network.
        prefix: of the setting's name, in the message.
    """
    if own_network:
        mode = "custom network"
    else:
        mode = "image observations" if is_image_space(observation_space) else "vector observations"
    reject_unused(config, mode, prefix)
