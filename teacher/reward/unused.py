"""Rejection of predictor settings that would have no effect."""

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from teacher.reward.images import is_image_space
from teacher.reward.modules import MakeNetwork
from teacher.settings.checks import reject_unused
from teacher.settings.options import RewardConfig

IN_A_SINGLE_FIT: Mapping[str, str] = {
    "epochs": "there is only one fit; set its epochs with initial_epochs",
    "converge": "there is only one fit, and it runs until convergence",
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
    """Raise :class:`ConfigError` if a setting was changed that the predictor's kind of network ignores.

    Args:
        config: settings of the predictor.
        observation_space: observation space of a single environment; images need convolutional networks.
        network: the user's function that makes custom networks; None for built-in networks.
        prefix: prefix of the setting's name in the error message.
    """
    names: tuple[str, ...]
    if network is not None:
        names, why = (*_OF_PLAIN_NETWORKS, "shaping", *_OF_IMAGES), "custom networks ignore it"
    elif is_image_space(observation_space):
        names, why = _OF_PLAIN_NETWORKS, "observations are images"
    else:
        names, why = _OF_IMAGES, "observations are not images"
    reject_unused(config, dict.fromkeys(names, why), prefix)
