"""Labels by a function of the states that the labelers saw."""

from collections.abc import Callable, Container
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from numpy.typing import NDArray

from teacher.data.preferences import Preference, PreferenceDataset
from tests.teacher.conftest import make_segment

Goal = Callable[[NDArray[Any]], NDArray[Any]]
Ask = Callable[..., PreferenceDataset]


@pytest.fixture
def ask() -> Ask:
    """Labels pairs by number; those that are wrong, or such a share of them, say the opposite."""

    def labels(
        goal: Goal, numbers: range | int, wrong: Container[int] | float = (), **options: Any
    ) -> PreferenceDataset:
        result, rng = PreferenceDataset(), np.random.default_rng(5)
        for number in range(numbers) if isinstance(numbers, int) else numbers:
            first, second = (
                make_segment(2 * number + one, **{"observation_size": 8, **options}) for one in (0, 1)
            )
            first_wins = goal(first.observations).sum() > goal(second.observations).sum()
            is_wrong = rng.random() < wrong if isinstance(wrong, float) else number in wrong
            value = float(first_wins != is_wrong)
            result.upsert([Preference(UUID(int=(number << 64) + number), first, second, value)])
        return result

    return labels
