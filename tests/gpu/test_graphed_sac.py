"""Steps of SAC as CUDA graphs equal autograd's on the CPU; needs a GPU."""

from typing import Any

import pytest
import torch

from agents.graphed_sac import GraphedSACStep
from agents.sac_step import SACStep
from agents.squashed_gaussian import SquashedActorCritic
from tests.agents.conftest import made_up_batch, squashed_policy

STEPS = 12


def make_step(kind: type[SACStep], device: str, **changes: Any) -> tuple[SquashedActorCritic, SACStep]:
    policy, config = squashed_policy(device, **changes)
    return policy, kind(policy, config)


@pytest.mark.parametrize("changes", [{}, {"target_update_interval": 2}, {"ent_coef": 0.3, "tau": 0.5}])
def test_graphs_take_the_steps_of_autograd(changes: dict[str, Any]) -> None:
    ours, graphed = make_step(GraphedSACStep, "cuda", **changes)
    theirs, plain = make_step(SACStep, "cpu", **changes)
    for seed in range(STEPS):
        found, expected = (
            graphed(*made_up_batch(seed, device="cuda")),
            plain(*made_up_batch(seed, device="cpu")),
        )
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value.item(), abs=1e-9)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=0, atol=1e-9)


def test_graphs_follow_a_restored_state_and_reset_critics() -> None:
    policy, graphed = make_step(GraphedSACStep, "cuda")
    for seed in range(STEPS):
        graphed(*made_up_batch(seed, device="cuda"))
    state, parameters = graphed.state_dict(), {k: v.clone() for k, v in policy.state_dict().items()}
    after = [graphed(*made_up_batch(seed, device="cuda"))["critic_loss"].item() for seed in range(3)]
    graphed.load_state_dict(state)
    policy.load_state_dict(parameters)
    assert [graphed(*made_up_batch(seed, device="cuda"))["critic_loss"].item() for seed in range(3)] == after
    other, fresh = make_step(SACStep, "cuda")
    policy.load_state_dict(other.state_dict())
    for each in (graphed, fresh):
        each.load_state_dict({})
    graphed.log_ent_coef.data.copy_(fresh.log_ent_coef.data)
    policy.reset_critics(torch.Generator().manual_seed(9))
    other.reset_critics(torch.Generator().manual_seed(9))
    found, expected = graphed(*made_up_batch(1, device="cuda")), fresh(*made_up_batch(1, device="cuda"))
    assert found["critic_loss"].item() == pytest.approx(expected["critic_loss"].item(), abs=1e-9)
