"""Steps of an environment as what learns from them sees them, wherever they are kept."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from teacher.envs.recipe import EpisodeRecipe

LARGEST = np.finfo(np.float32).max  # of numpy's type, so that half precision is compared without overflow


class Steps(Protocol):
    """Steps in arrays of the same leading dimensions ``*batch``: a segment, an episode, rows of a dataset."""

    @property
    def observations(self) -> NDArray[Any]:
        """``(*batch, *observation_shape)``, raw, each before its step."""

    @property
    def actions(self) -> NDArray[Any]:
        """``(*batch, *action_shape)``, as executed."""

    @property
    def next_observations(self) -> NDArray[Any]:
        """``(*batch, *observation_shape)``, raw, each after its step."""

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """``(*batch,)``, whether the environment ended the episode with that step."""


class RewardedSteps(Steps, Protocol):
    """Steps with what the environment's own reward says of them."""

    @property
    def true_rewards(self) -> NDArray[np.float64]:
        """``(*batch,)``."""


class Episode(RewardedSteps, Protocol):
    """What segments are cut from: an episode, perhaps still growing."""

    def __len__(self) -> int:
        """Steps so far."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""

    @property
    def frames(self) -> Sequence[bytes] | None:
        """A picture after each step, as JPEG files; None where none were captured."""

    def recipe(self, upto: int | None = None) -> EpisodeRecipe:
        """How to play the first ``upto`` steps again."""


def readable_steps(episode: Episode) -> int:
    """How many steps can be learned from: all of them, but for a last one that led to what is no number.

    An environment may end an episode because its state is no number any more.
    """
    led_to_numbers = fits_float32(episode.next_observations[-1:]).all()
    return len(episode) - int(episode.finished and not led_to_numbers)


def fits_float32(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are finite, also in the precision that rewards and policies are computed in."""
    if array.dtype.kind != "f":
        return np.ones(array.shape, bool)
    fits: NDArray[np.bool_] = np.abs(array) <= LARGEST  # not so for a NaN
    return fits
