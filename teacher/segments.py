"""Segments: fixed-length slices of one episode, and the pool that new queries are drawn from."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import DataError


@dataclass(frozen=True, eq=False)
class Segment:
    """A slice of one episode.

    Attributes:
        recipe: plays the episode up to the end of this segment; ``len(recipe.actions) == start + len(self)``.
        start: index of the segment's first step in its episode.
        observations: ``(length, *observation_shape)``, raw, each before its step.
        actions: ``(length, *action_shape)``, as executed.
        true_rewards: ``(length,)`` of the environment's own reward.
    """

    recipe: EpisodeRecipe
    start: int
    observations: NDArray[Any]
    actions: NDArray[Any]
    true_rewards: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def true_return(self) -> float:
        """Sum of the environment's reward over the segment."""
        return float(self.true_rewards.sum())

    def to_bytes(self) -> bytes:
        """The segment as an ``.npz`` archive without pickled objects."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            recipe=np.array(self.recipe.to_json()),
            start=np.array(self.start),
            observations=self.observations,
            true_rewards=self.true_rewards,
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Segment":
        """Read back :meth:`to_bytes`. Raises :class:`DataError` where the archive is damaged."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                recipe = EpisodeRecipe.from_json(str(archive["recipe"]))
                start = int(archive["start"])
                return cls(
                    recipe, start, archive["observations"], recipe.actions[start:], archive["true_rewards"]
                )
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(f"a stored segment cannot be read: {error}") from error
