"""The torch module of a predictor against the predictor that it was made from."""

import numpy as np
import pytest
import torch

from tests.models import PREDICTORS, PredictorCase


@pytest.mark.parametrize("case", PREDICTORS.values(), ids=PREDICTORS)
def test_it_predicts_the_same_rewards(case: PredictorCase) -> None:
    predictor, steps = case.predictor(), case.steps(20)
    module = predictor.portable()
    assert set(module.inputs) == predictor.inputs
    with torch.no_grad():
        found = module(*(torch.from_numpy(steps[name]) for name in module.inputs))
    expected = predictor.rewards(*steps.values())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert expected.std() > 1e-4  # not the same reward everywhere
