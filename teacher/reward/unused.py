"""Predictor settings that have no effect in a given use, refused instead of ignored."""

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from teacher.reward.images import is_image_space
from teacher.reward.modules import MakeNetwork
from teacher.settings.checks import reject_unused
from teacher.settings.options import RewardConfig

IN_A_SINGLE_FIT: Mapping[str, str] = {
    "epochs": "there is only one fit; set its epochs with initial_epochs",
    "converge": "there is only one fit, which goes to convergence",
    "refit_after": "there is only one fit",
}

_OF_PLAIN_NETWORKS = ("hidden", "dropout")
_OF_IMAGES = ("image_dropout", "no_image_batch_norm")


def reject_unused_of_network(
    config: RewardConfig,
    observation_space: spaces.Space[Any],
    network: MakeNetwork | None = None,
    prefix: str = "reward.",
) -> None:
    """Raise :class:`ConfigError` for a setting that the kind of network in use does not have.

    Args:
        config: the settings.
        observation_space: of one environment; decides whether networks are convolutional.
        network: the user's custom network, if any.
        prefix: of the setting's name, in the message.
    """
    names: tuple[str, ...]
    if network is not None:
        names, why = (*_OF_PLAIN_NETWORKS, "shaping", *_OF_IMAGES), "a custom network decides that"
    elif is_image_space(observation_space):
        names, why = _OF_PLAIN_NETWORKS, "observations are images"
    else:
        names, why = _OF_IMAGES, "observations are not images"
    reject_unused(config, dict.fromkeys(names, why), prefix)
