"""Study of kinds of questions: what a reward predictor learns from the answers of each kind alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

import numpy as np

from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.queries.kinds import KINDS, preferences_in
from teacher.reward.predictor import RewardPredictor

COUNTS = (10, 20, 40, 80, 160, 320, 640, 1280)
"""Numbers of answers that predictors are fitted to."""
HELD_OUT = 5
"""One in this many questions is held out."""
_FEWEST = 10  # held-out questions


class Study:
    """Fits predictors to answers of one kind each, and tests them on the same held-out questions.

    The held-out questions are those whose answers compare their own items; ratings are compared with other
    ratings, which may not be held out.

    Args:
        make_predictor: returns a new predictor with the run's settings.
    """

    def __init__(self, make_predictor: Callable[[], RewardPredictor]) -> None:
        self._make_predictor = make_predictor
        self._fitted: dict[tuple[str, int], RewardPredictor] = {}

    def points(self, ledger: Ledger) -> dict[str, float]:
        """Fit predictors that have become possible, and return the accuracy of all.

        Returns:
            ``study/KIND/N``: share of the held-out questions whose answers a predictor fitted to the first N
            answers of the kind predicts; ``study/held_out``: number of these questions. Empty if there are
            too few.
        """
        kinds = {each.uuid: each.kind for each in ledger.answered()}
        questions: dict[UUID, list[Preference]] = {}
        for preference in preferences_in(ledger):
            questions.setdefault(preference.question or preference.uuid, []).append(preference)
        held_out = [
            own
            for uuid, own in questions.items()
            if uuid.int % HELD_OUT == 0 and KINDS[kinds[uuid]].compares_own_items
        ]
        tested = [own for own in (_strict(each) for each in held_out) if own]
        if len(tested) < _FEWEST:
            return {}
        known = {own[0].question or own[0].uuid for own in held_out}
        for name in KINDS:
            asked = [uuid for uuid, kind in kinds.items() if kind == name and uuid not in known]
            self._fit(name, asked, questions)
        accuracies = {
            f"study/{name}/{count}": _accuracy(predictor, tested)
            for (name, count), predictor in self._fitted.items()
        }
        return {**accuracies, "study/held_out": float(len(tested))}

    def _fit(self, name: str, asked: Sequence[UUID], questions: Mapping[UUID, Iterable[Preference]]) -> None:
        for count in COUNTS:
            if count > len(asked) or (name, count) in self._fitted:
                continue
            dataset = PreferenceDataset()
            for uuid in asked[:count]:
                dataset.upsert(questions.get(uuid, ()))
            if len(dataset):
                predictor = self._make_predictor()
                predictor.fit(dataset)
                self._fitted[name, count] = predictor


def _strict(preferences: Iterable[Preference]) -> list[Preference]:
    """Return the preferences for one of two segments."""
    return [each for each in preferences if each.value is not None and each.value != 0.5]


def _accuracy(predictor: RewardPredictor, questions: Sequence[Sequence[Preference]]) -> float:
    """Return the share of preferences that are predicted; each question has the same weight."""
    every = [each for own in questions for each in own]
    weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in questions])
    return float(np.average(predictor.agrees(every), weights=weights))
