"""When the NumPy backend is used, and when it is loaded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from agents.numpy_backend import supports
from agents.pixels import ImageActorCritic
from agents.policy import MLPActorCritic

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("space", "supported"),
    [(Box(-1, 1, (2,), np.float32), True), (Discrete(3), True), (MultiDiscrete([2, 3]), False)],
)
def test_vectors_with_one_action_distribution_are_supported(space: Any, supported: bool) -> None:
    assert supports(MLPActorCritic(4, space, torch.Generator())) is supported


def test_images_are_not_supported() -> None:
    assert not supports(ImageActorCritic((1, 36, 36), Discrete(2), torch.Generator(), share_trunk=True))


def test_modules_are_loaded_when_they_are_first_used() -> None:
    program = (
        "import sys, agents.ppo; print([m for m in sys.modules if m.startswith('agents.numpy_backend.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
