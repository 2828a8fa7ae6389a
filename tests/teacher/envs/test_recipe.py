"""Recipes survive the way through JSON, and nothing else passes for one."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from teacher.envs.recipe import EpisodeRecipe, library_versions
from teacher.errors import DataError


@given(
    actions=hnp.arrays(
        st.sampled_from([np.dtype(name) for name in ("<f4", ">f8", "<i8", "u1", "?")]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    ),
    seed=st.integers(0, 2**63),
)
def test_json_keeps_every_bit(actions: NDArray[Any], seed: int) -> None:
    recipe = EpisodeRecipe("teacher/Hopper-v1", {"max_episode_steps": 30}, seed, actions)
    again = EpisodeRecipe.from_json(recipe.to_json())
    assert (again.env_id, again.kwargs, again.seed) == (recipe.env_id, recipe.kwargs, seed)
    assert again.actions.shape == actions.shape
    assert again.actions.dtype == actions.dtype.newbyteorder("=")
    assert again.actions.tobytes() == actions.astype(actions.dtype.newbyteorder("=")).tobytes()


def test_versions_are_those_of_the_recording() -> None:
    recipe = EpisodeRecipe("CartPole-v1", {}, 0, np.zeros(2, np.int64))
    assert recipe.versions == library_versions()
    assert set(recipe.versions) == {"gymnasium", "mujoco", "numpy"}
    older = recipe.to_json().replace(recipe.versions["numpy"], "1.0.0")
    assert EpisodeRecipe.from_json(older).versions["numpy"] == "1.0.0"


VALID = json.loads(EpisodeRecipe("CartPole-v1", {}, 0, np.zeros(2, np.int64)).to_json())
VALID_ACTIONS = VALID["actions"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "not json",
        *[json.dumps({key: VALID[key] for key in VALID if key != missing}) for missing in VALID],
        json.dumps({**VALID, "seed": "today"}),
        json.dumps({**VALID, "seed": float("inf")}),
        json.dumps({**VALID, "kwargs": 3}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "shape": [3]}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "O"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "nonsense"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "(2,3"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "base64": "!!!!"}}),
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not an episode recipe"):
        EpisodeRecipe.from_json(text)
