"""Settings of a predictor that do nothing where it is used, and why: to be refused rather than ignored."""

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from teacher.reward.images import is_image_space
from teacher.reward.modules import MakeNetwork
from teacher.settings.checks import reject_unused
from teacher.settings.options import RewardConfig

IN_A_SINGLE_FIT: Mapping[str, str] = {
    "epochs": "no fit follows the first; initial_epochs says how often that goes through all labels",
    "converge": "no fit follows the first, which goes to convergence",
    "refit_after": "no fit follows the first",
}

_OF_PLAIN_NETWORKS = ("hidden", "dropout")
_OF_IMAGES = ("image_dropout", "no_image_batch_norm")


def reject_unused_of_network(
    config: RewardConfig,
    observation_space: spaces.Space[Any],
    network: MakeNetwork | None = None,
    prefix: str = "reward.",
) -> None:
    """Raise :class:`ConfigError` for a setting of another kind of network than that which is fitted.

    Args:
        config: the settings.
        observation_space: of one environment; decides whether networks look at images.
        network: one of the user's own, where there is one.
        prefix: of the setting's name, in the message.
    """
    names: tuple[str, ...]
    if network is not None:
        names, why = (*_OF_PLAIN_NETWORKS, "shaping", *_OF_IMAGES), "a network of your own decides that"
    elif is_image_space(observation_space):
        names, why = _OF_PLAIN_NETWORKS, "observations are images"
    else:
        names, why = _OF_IMAGES, "observations are no images"
    reject_unused(config, dict.fromkeys(names, why), prefix)
