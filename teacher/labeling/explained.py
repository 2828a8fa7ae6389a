"""Predicted rewards of the run's films and newest questions, which the site shows to researchers."""

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from teacher.data.ledger import Question
from teacher.data.steps import Steps
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError
from teacher.files import DAMAGED_ARCHIVE, atomic_write, opened_archive
from teacher.reward.predictor import RewardPredictor, relabeled

FILMS = 60
QUESTIONS = 40
CURVE = 40  # points
_STEPS = 240  # for which rewards are predicted, per film or clip
_STEPS_BYTES = 2**18  # fewer steps, but at least 8, if observations are images


class _Sampled(NamedTuple):
    """Evenly spaced steps of a film or clip."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    next_observations: NDArray[Any] | None
    terminations: NDArray[np.bool_]


@dataclass(frozen=True)
class Predictions:
    """Predicted rewards from the same predictor, as curves with up to ``CURVE`` points.

    Attributes:
        step: environment step at which the predictor was in use.
        films: curve of each film, keyed by the environment step at which its episode ended.
        questions: curves of each question's items, keyed by its UUID.
    """

    step: int
    films: Mapping[int, Sequence[float]]
    questions: Mapping[UUID, Sequence[Sequence[float]]]

    @property
    def body(self) -> dict[str, Any]:
        """The predictions as JSON."""
        return {
            "step": self.step,
            "films": [{"step": step, "rewards": curve} for step, curve in self.films.items()],
            "comparisons": [{"uuid": str(uuid), "items": items} for uuid, items in self.questions.items()],
        }


class Explainer:
    """Keeps steps of the run's films and its newest questions, to predict their rewards after each fit.

    It keeps at most ``FILMS`` films, spread over the run, with up to 240 steps (or 256 KiB) each, also in
    ``folder``, so that a resumed run can score them again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._films = dict(_loaded(folder))
        self._questions: deque[Question] = deque(maxlen=QUESTIONS)
        self._explained: tuple[object, ...] = ()

    def ask(self, questions: Iterable[Question]) -> None:
        """Take questions that were asked; the newest replace the oldest."""
        with self._lock:
            self._questions.extend(questions)

    def add(self, step: int, episode: Trajectory) -> None:
        """Take the episode of the film made at environment step ``step``; thread-safe."""
        film = _sampled(episode)
        with contextlib.suppress(OSError):  # only a resumed run needs the file
            self._folder.mkdir(exist_ok=True)
            with atomic_write(self._file(step)) as file:
                np.savez_compressed(file, **film._asdict())
        with self._lock:
            self._films[step] = film
            steps = sorted(self._films)
            if len(steps) > FILMS:  # drop the film whose neighbors are closest to each other
                dropped = min(range(1, len(steps) - 1), key=lambda at: steps[at + 1] - steps[at - 1])
                del self._films[steps[dropped]]
                self._file(steps[dropped]).unlink(missing_ok=True)

    def explain(self, predictor: RewardPredictor, fits: int, step: int) -> Predictions | None:
        """Return the rewards that ``predictor`` predicts now; None if nothing changed since the last call.

        Args:
            fits: number of the predictor's fits.
            step: current environment step.
        """
        with self._lock:
            films, questions = dict(sorted(self._films.items())), list(self._questions)
        explained = (fits, *films, *(question.uuid for question in questions))
        if explained == self._explained:
            return None
        self._explained = explained
        clips = [_sampled(item) for question in questions for item in question.items]
        curves = iter(_curves(predictor, [*films.values(), *clips]))
        return Predictions(
            step,
            {at: next(curves) for at in films},
            {question.uuid: [next(curves) for _ in question.items] for question in questions},
        )

    def _file(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}.npz"


def _loaded(folder: Path) -> Iterable[tuple[int, _Sampled]]:
    unreadable = contextlib.suppress(OSError, *DAMAGED_ARCHIVE)  # such a film has no score
    for path in folder.glob("step-*.npz"):
        with unreadable, path.open("rb") as file, opened_archive(file) as arrays:
            yield int(path.stem.removeprefix("step-")), _Sampled(*(arrays[part] for part in _Sampled._fields))


def _sampled(steps: Steps) -> _Sampled:
    """Return evenly spaced steps."""
    count, size = len(steps.actions), max(1, 2 * steps.observations[:1].nbytes)
    wanted = min(count, _STEPS, max(8, _STEPS_BYTES // size))
    at = np.linspace(0, count - 1, wanted).round().astype(int)
    after = None
    with contextlib.suppress(DataError):  # segments of early versions have no final observation
        after = steps.next_observations[at]
    return _Sampled(steps.observations[at], steps.actions[at], after, steps.terminations[at])


def _curves(predictor: RewardPredictor, sampled: Sequence[_Sampled]) -> list[list[float]]:
    """Return the predicted rewards, averaged over at most ``CURVE`` equal parts of each film or clip."""
    if not sampled:
        return []
    observations, actions, after, ends = zip(*sampled, strict=True)
    rewards = relabeled(
        predictor,
        np.concatenate(observations),
        np.concatenate(actions),
        None if any(each is None for each in after) else np.concatenate(after),
        np.concatenate(ends),
    )
    curves = np.split(rewards, np.cumsum([len(each) for each in actions])[:-1])
    return [
        [float(f"{part.mean():.3g}") for part in np.array_split(curve, min(CURVE, len(curve)))]
        for curve in curves
    ]
