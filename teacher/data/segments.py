"""Segments: fixed-length slices of one episode, and the pool that new queries are drawn from."""

import io
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from teacher.data.steps import LARGEST, NOTHING_AFTER, fits_float32, readable_steps
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.trajectory import Trajectory, terminations
from teacher.errors import DataError, pluralize
from teacher.settings.checks import COUNT, NOT_NEGATIVE, SEED, whole_number

_DRAWN_AT_ONCE = 2**14  # pairs by weight, most of them of a segment with itself where one weighs most
_WORTH_DRAWING = 1 / 16  # of these; where fewer are of two segments, the second is drawn from the others
_LEVEL = 1  # of compression; 6, the usual, takes four times as long for a few percent
_FINAL = "last_observation"
_FRAMES, _FRAME_SIZES = "frames", "frame_sizes"


@dataclass(frozen=True, eq=False)
class Segment:
    """A slice of one episode.

    Attributes:
        recipe: plays the episode up to the end of this segment; ``len(recipe.actions) == start + len(self)``.
        start: index of the segment's first step in its episode.
        observations: ``(length, *observation_shape)``, raw, each before its step.
        actions: ``(length, *action_shape)``, as executed.
        true_rewards: ``(length,)`` of the environment's own reward.
        final_observation: ``(*observation_shape)``, raw, after the last step; None where it was not recorded.
        terminated: the environment ended the episode with the last step; False where it was not recorded.
        frames: a picture after each step, as JPEG files, to be shown instead of a replay; None where none
            were captured.

    Raises:
        ValueError: the parts do not fit each other.
        DataError: a number is NaN, infinite, or too large for single precision, in which rewards are learned.
    """

    recipe: EpisodeRecipe
    start: int
    observations: NDArray[Any]
    actions: NDArray[Any]
    true_rewards: NDArray[np.float64]
    final_observation: NDArray[Any] | None = None
    terminated: bool = False
    frames: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        length = len(self.actions)
        if length == 0 or self.start < 0 or len(self.recipe.actions) != self.start + length:
            raise ValueError(
                f"expected a segment of 1 or more steps that ends where its recipe does, got {length} steps "
                f"from {self.start} and a recipe of {len(self.recipe.actions)}"
            )
        if len(self.observations) != length or self.true_rewards.shape != (length,):
            raise ValueError(
                f"expected observations and true rewards of {length} steps, got {self.observations.shape} "
                f"and {self.true_rewards.shape}"
            )
        if self.frames is not None and len(self.frames) != length:
            raise ValueError(f"expected a picture of each of {length} steps, got {len(self.frames)}")
        final = self.final_observation
        if final is not None and (final.shape, final.dtype) != (
            self.observations.shape[1:],
            self.observations.dtype,
        ):
            raise ValueError(
                f"expected a final observation like the others, {self.observations.shape[1:]} and "
                f"{self.observations.dtype}, got {final.shape} and {final.dtype}"
            )
        for name in ("observations", "actions", "true_rewards", "final_observation"):
            self._require_finite(name)

    def _require_finite(self, name: str) -> None:
        values = getattr(self, name)
        if values is None:
            return
        fits = fits_float32(values)
        if not fits.all():
            raise DataError(
                f"expected finite {name} of at most {LARGEST:.1e}, got {values[~fits][0]} in an episode of "
                f"{self.recipe.env_id} with seed {self.recipe.seed}; mend the environment"
            )

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def nbytes(self) -> int:
        """What it takes up in memory, without the actions, which it shares with its episode."""
        return self.observations.nbytes + sum(map(len, self.frames or ()))

    @property
    def true_return(self) -> float:
        """Sum of the environment's reward over the segment."""
        return float(self.true_rewards.sum())

    @property
    def next_observations(self) -> NDArray[Any]:
        """``(length, *observation_shape)``, raw, each after its step.

        Raises:
            DataError: there is no final observation.
        """
        if self.final_observation is None:
            raise DataError(NOTHING_AFTER)
        return np.concatenate([self.observations[1:], self.final_observation[None]])

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """``(length,)``, whether the environment ended the episode with that step.

        Raises:
            DataError: there is no final observation, so neither is this known.
        """
        if self.final_observation is None:
            raise DataError(NOTHING_AFTER)
        return terminations((len(self),), self.terminated)

    def to_bytes(self) -> bytes:
        """The segment as an ``.npz`` archive without pickled objects."""
        arrays: dict[str, Any] = {
            "recipe": self.recipe.to_json(),
            "start": self.start,
            "observations": self.observations,
            "true_rewards": self.true_rewards,
            "terminated": self.terminated,
        }
        if self.final_observation is not None:
            arrays[_FINAL] = self.final_observation
        if self.frames is not None:
            arrays[_FRAMES] = np.frombuffer(b"".join(self.frames), np.uint8)
            arrays[_FRAME_SIZES] = np.array([len(frame) for frame in self.frames])
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Segment":
        """Read back :meth:`to_bytes`, also of versions that kept nothing after the last step.

        Raises:
            DataError: the archive is damaged.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                recipe = EpisodeRecipe.from_json(str(archive["recipe"]))
                start, observations = int(archive["start"]), archive["observations"]
                if observations.dtype.kind not in "iufb":
                    raise ValueError(f"observations of dtype {observations.dtype}")
                true_rewards = archive["true_rewards"].astype(np.float64)
                return cls(
                    recipe,
                    start,
                    observations,
                    recipe.actions[start:],
                    true_rewards,
                    final_observation=archive.get(_FINAL),
                    terminated=_FINAL in archive and bool(archive["terminated"]),
                    frames=_split(archive[_FRAMES], archive[_FRAME_SIZES]) if _FRAMES in archive else None,
                )
        except Exception as error:  # what a damaged archive makes numpy, zipfile and zlib raise is not listed
            raise DataError(f"a stored segment cannot be read: {error}") from error


def _split(joined: NDArray[np.uint8], sizes: NDArray[np.int64]) -> tuple[bytes, ...]:
    """What :meth:`Segment.to_bytes` joined. Raises ValueError where the sizes do not add up."""
    if sizes.sum() != len(joined) or (sizes < 0).any():
        raise ValueError(f"{len(joined)} bytes of pictures, expected {sizes.sum()}")
    return tuple(part.tobytes() for part in np.split(joined, np.cumsum(sizes)[:-1]))


SegmentPair = tuple[Segment, Segment]


class _Entry(NamedTuple):
    """A segment in the pool, and whether actions were explored for it."""

    segment: Segment
    explored: bool


class SegmentPool:
    """The most recent segments, each of ``length`` steps, cut from trajectories as these grow.

    A segment owns a copy of its observations and rewards. Its recipe shares the actions of its episode, and
    nothing else, so that the pool's memory is bounded by ``capacity`` segments and their episodes' actions.

    Args:
        length: steps of a segment.
        capacity: segments kept; the oldest go first.
        seed: decides where the first segment of an episode begins, and the pairs.
        max_bytes: of segments kept, but for two; None sets no limit.

    Raises:
        ConfigError: a size is no whole number of 1 or more, or no generator takes the seed.
    """

    def __init__(
        self, length: int, capacity: int = 2000, seed: int = 0, max_bytes: int | None = None
    ) -> None:
        self.length = whole_number(length, "length", COUNT)
        self.capacity = whole_number(capacity, "capacity", COUNT)
        self._max_bytes = None if max_bytes is None else whole_number(max_bytes, "max_bytes", COUNT)
        self._entries: list[_Entry] = []
        self._asked: list[SegmentPair] = []
        self._next_start: WeakKeyDictionary[Trajectory, int] = WeakKeyDictionary()
        self._random = np.random.default_rng(whole_number(seed, "seed", SEED))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, oldest first."""
        return [entry.segment for entry in self._entries]

    def newest(self, count: int) -> Sequence[Segment]:
        """Return the newest ``count`` segments, oldest first."""
        return [entry.segment for entry in self._entries[len(self._entries) - min(count, len(self)) :]]

    @property
    def explored(self) -> NDArray[np.bool_]:
        """``(len(self),)``: which segments came from steps that were made for questions only."""
        return np.array([entry.explored for entry in self._entries], np.bool_)

    @property
    def asked(self) -> Sequence[SegmentPair]:
        """The pairs that were asked about, of segments that are both still here."""
        return self._asked

    def extend(self, trajectories: Iterable[Trajectory], *, explored: bool = False) -> int:
        """Cut what is new in these trajectories into segments; returns how many.

        The segments of an episode follow one another from a random offset on, so that none overlaps another
        and no phase of the episode is always a segment's beginning. A trajectory may come again when it has
        grown. An episode shorter than a segment gives none; see :func:`readable_steps` for its last step.

        Args:
            trajectories: new, or grown since they came last.
            explored: they were made for questions only.
        """
        cut = [segment for trajectory in trajectories for segment in self._cut(trajectory)]
        self.add(cut, explored=explored)
        return len(cut)

    def add(self, segments: Iterable[Segment], *, explored: bool = False) -> None:
        """Take in segments that are cut already, each of :attr:`length`, else :class:`DataError`."""
        segments = list(segments)
        if others := {len(segment) for segment in segments} - {self.length}:
            raise DataError(
                f"expected segments, all cut to {pluralize(self.length, 'step')}, got one of {min(others)}"
            )
        self._keep(self._entries + [_Entry(segment, explored) for segment in segments])

    def absorb(self, other: "SegmentPool") -> None:
        """Take in the segments of another pool, and its room."""
        self.capacity += other.capacity
        self._keep([*self._entries, *other._entries])

    def remember(self, pairs: Iterable[SegmentPair]) -> None:
        """Note that these pairs were asked about."""
        self._asked += pairs

    def sample_pairs(self, n: int, weights: NDArray[np.floating[Any]] | None = None) -> list[SegmentPair]:
        """``n`` pairs of two different segments, drawn uniformly.

        No segment is in two pairs unless the pool is too small; then each is used about equally often.

        Args:
            n: how many.
            weights: ``(len(self),)``: instead, draw the segments of each pair in proportion to these.

        Raises:
            ConfigError: ``n`` is no whole number of 0 or more.
            ValueError: the pool has fewer than two segments to draw.
        """
        n = whole_number(n, "n", NOT_NEGATIVE)
        drawable = len(self) if weights is None else np.count_nonzero(weights)
        if n > 0 and drawable < 2:
            raise ValueError(f"expected a pool of 2 or more segments to pair, got {drawable}")
        segments = self.segments
        pairs: list[SegmentPair] = []
        while len(pairs) < n:
            if weights is None:
                order = self._random.permutation(len(self))
                rows = order[: len(order) // 2 * 2].reshape(-1, 2)
            else:
                drawn = self._random.choice(len(self), (max(n, _DRAWN_AT_ONCE), 2), p=weights / weights.sum())
                rows = drawn[drawn[:, 0] != drawn[:, 1]][:n]
                if len(rows) < min(n, _WORTH_DRAWING * len(drawn)):
                    rows = self._different(n, weights)
            pairs += [(segments[first], segments[second]) for first, second in rows.tolist()]
        return pairs[:n]

    def _different(self, n: int, weights: NDArray[np.floating[Any]]) -> NDArray[np.intp]:
        """``(n, 2)`` rows drawn in proportion to weights, given that they differ."""
        shares = weights / weights.sum()
        first_shares = shares * (1 - shares)
        first = self._random.choice(len(self), n, p=first_shares / first_shares.sum())
        second = np.empty_like(first)
        for row in np.unique(first):
            others = np.where(np.arange(len(self)) == row, 0.0, weights)
            drawn = first == row
            second[drawn] = self._random.choice(len(self), drawn.sum(), p=others / others.sum())
        return np.stack([first, second], axis=1)

    def sample_unknown(
        self, n: int, known: Iterable[SegmentPair], weights: NDArray[np.floating[Any]] | None = None
    ) -> list[SegmentPair]:
        """Up to ``n`` pairs of two different segments, each once, and none of those that are known.

        Fewer come where there are no more. It lists all pairs, so it is for where drawing finds few new ones.

        Args:
            n: how many.
            known: pairs of segments that are here.
            weights: as in :meth:`sample_pairs`.
        """
        segments = self.segments
        weights = np.ones(len(self)) if weights is None else weights
        rows = {segment: row for row, segment in enumerate(segments)}
        chances = np.triu(np.outer(weights, weights), 1)
        for pair in known:
            first, second = sorted(rows[segment] for segment in pair)
            chances[first, second] = 0.0
        there = np.flatnonzero(chances)
        n = min(n, len(there))
        if n == 0:
            return []
        shares = chances.flat[there]
        chosen = self._random.choice(there, n, replace=False, p=shares / shares.sum())
        found = np.stack(np.divmod(chosen, len(self)), axis=1)
        found = self._random.permuted(found, axis=1)  # either is the first as often
        return [(segments[first], segments[second]) for first, second in found.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """The random state; segments are not saved, because a resumed run soon has newer ones."""
        return {"random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over :meth:`state_dict`."""
        self._random.bit_generator.state = state["random"]

    def _keep(self, entries: list[_Entry]) -> None:
        """Hold the last of these, and forget questions about others."""
        self._entries = entries[-min(self.capacity, self._fitting(entries)) :]
        if len(entries) > len(self._entries):
            here = set(self.segments)
            self._asked = [pair for pair in self._asked if here.issuperset(pair)]

    def _fitting(self, entries: Sequence[_Entry]) -> int:
        """How many of the last of these there is memory for."""
        if self._max_bytes is None:
            return len(entries)
        sizes = np.cumsum([entry.segment.nbytes for entry in reversed(entries)])
        return max(2, int(np.searchsorted(sizes, self._max_bytes, side="right")))

    def _cut(self, trajectory: Trajectory) -> list[Segment]:
        start, steps = self._next_start.get(trajectory), readable_steps(trajectory)
        if start is None:
            start = first_start(self.length, steps, trajectory.finished, self._random)
        if start is None:
            return []
        segments = []
        while start + self.length <= steps:
            segments.append(slice_of(trajectory, start, start + self.length))
            start += self.length
        self._next_start[trajectory] = start
        return segments


def first_start(length: int, steps: int, finished: bool, random: np.random.Generator) -> int | None:
    """Where the first segment of an episode begins; None while the episode is too short to say.

    Any offset below ``length`` is possible that leaves room for one segment.

    Args:
        length: steps of a segment.
        steps: of the episode so far.
        finished: whether it has ended.
        random: draws the offset.
    """
    if steps < length or (not finished and steps < 2 * length - 1):
        return None
    return int(random.integers(min(length, steps - length + 1)))


def slice_of(trajectory: Trajectory, start: int, stop: int) -> Segment:
    """The steps from ``start`` to before ``stop``."""
    recipe = trajectory.recipe(stop)
    return Segment(
        recipe,
        start,
        trajectory.observations[start:stop].copy(),
        recipe.actions[start:],
        trajectory.true_rewards[start:stop].copy(),
        np.array(trajectory.next_observations[stop - 1]),
        bool(trajectory.terminations[stop - 1]),
        None if trajectory.frames is None else tuple(trajectory.frames[start:stop]),
    )
