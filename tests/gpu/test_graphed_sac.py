"""Steps of SAC as CUDA graphs equal autograd's on the CPU; needs a GPU."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from agents.graphed_sac import GraphedSACStep
from agents.sac_step import Minibatch, SACConfig, SACStep
from agents.squashed_gaussian import SquashedActorCritic

ACTIONS = Box(-2.0, 2.0, (2,), np.float64)
STEPS = 12


def make_step(kind: type[SACStep], device: str, **changes: Any) -> tuple[SquashedActorCritic, SACStep]:
    config = SACConfig(**{"hidden_sizes": (32, 16), "learning_rate": 1e-3, **changes})
    generator = torch.Generator().manual_seed(1)
    policy = SquashedActorCritic(5, ACTIONS, generator, config.hidden_sizes, config.activation)
    policy = policy.to(device, torch.float64)
    return policy, kind(policy, config)


def make_batch(device: str, seed: int, n: int = 64) -> tuple[Minibatch, torch.Tensor]:
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((n, 5)), rng.uniform(-1, 1, (n, 2)), rng.standard_normal((n, 5))
    rest = rng.standard_normal(n), (rng.random(n) < 0.2).astype(np.float64)
    noise = torch.from_numpy(rng.standard_normal((2, n, 2))).to(device)
    return Minibatch(*(torch.from_numpy(array).to(device) for array in (*arrays, *rest))), noise


@pytest.mark.parametrize("changes", [{}, {"target_update_interval": 2}, {"ent_coef": 0.3, "tau": 0.5}])
def test_graphs_take_the_steps_of_autograd(changes: dict[str, Any]) -> None:
    ours, graphed = make_step(GraphedSACStep, "cuda", **changes)
    theirs, plain = make_step(SACStep, "cpu", **changes)
    for seed in range(STEPS):
        found, expected = graphed(*make_batch("cuda", seed)), plain(*make_batch("cpu", seed))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value.item(), abs=1e-9)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=0, atol=1e-9)


def test_graphs_follow_a_restored_state_and_reset_critics() -> None:
    policy, graphed = make_step(GraphedSACStep, "cuda")
    for seed in range(STEPS):
        graphed(*make_batch("cuda", seed))
    state, parameters = graphed.state_dict(), {k: v.clone() for k, v in policy.state_dict().items()}
    after = [graphed(*make_batch("cuda", seed))["critic_loss"].item() for seed in range(3)]
    graphed.load_state_dict(state)
    policy.load_state_dict(parameters)
    assert [graphed(*make_batch("cuda", seed))["critic_loss"].item() for seed in range(3)] == after
    other, fresh = make_step(SACStep, "cuda")
    policy.load_state_dict(other.state_dict())
    for each in (graphed, fresh):
        each.load_state_dict({})
    graphed.log_ent_coef.data.copy_(fresh.log_ent_coef.data)
    policy.reset_critics(torch.Generator().manual_seed(9))
    other.reset_critics(torch.Generator().manual_seed(9))
    found, expected = graphed(*make_batch("cuda", 1)), fresh(*make_batch("cuda", 1))
    assert found["critic_loss"].item() == pytest.approx(expected["critic_loss"].item(), abs=1e-9)
