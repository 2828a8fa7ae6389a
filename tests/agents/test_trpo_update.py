"""Test what one update of TRPO does: against sb3-contrib, an explicit Hessian and numpy's solver."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from agents.heads import GaussianHead, action_head
from agents.rollout import OnPolicyRollout
from agents.trpo import TRPO, TRPOConfig, conjugate_gradient, fisher_product
from tests.agents.conftest import counting_envs, made_up_rollout, parameters, sb3_model

NUM_STEPS, NUM_ENVS = 64, 2
MakeRollout = Callable[[TRPO], OnPolicyRollout]


def make_agent(env_id: str, *, allow_numpy: bool = True, **settings: Any) -> TRPO:
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * NUM_ENVS)
    config = TRPOConfig(num_steps=NUM_STEPS, minibatch_size=32, **settings)
    return TRPO(envs, config, seed=0, dtype=torch.float64, allow_numpy=allow_numpy)


def action_dimensions(agent: TRPO) -> int:
    """Over how many dimensions sb3-contrib averages the divergence."""
    return agent.policy.head.num_outputs if isinstance(agent.policy.head, GaussianHead) else 1


def sb3_trpo(agent: TRPO, env_id: str) -> Any:
    """sb3-contrib's TRPO with the hyperparameters of one of our agents."""
    config, dimensions = agent.config, action_dimensions(agent)
    return sb3_model(
        sb3_contrib.TRPO,
        agent,
        lambda: gymnasium.make(env_id),
        "MlpPolicy",
        cg_max_steps=config.cg_max_steps,
        cg_damping=config.cg_damping / dimensions,
        line_search_shrinking_factor=config.line_search_shrinking_factor,
        line_search_max_iter=config.line_search_max_iter,
        n_critic_updates=config.n_critic_updates,
        target_kl=config.target_kl / dimensions,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )


@pytest.mark.parametrize("allow_numpy", [True, False])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1", "Reacher-v5"])
def test_an_update_gives_the_parameters_that_sb3_contrib_gives(
    env_id: str, allow_numpy: bool, sb3_twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent(env_id, allow_numpy=allow_numpy)
    reference = sb3_twin(sb3_trpo(agent, env_id), agent)
    metrics = reference.assert_updates_alike(monkeypatch, least=1e-2, atol=1e-6, whole_batches=1)
    kl = reference.logged("kl_divergence_loss") * action_dimensions(agent)
    assert metrics["kl"] == pytest.approx(kl, rel=1e-4)
    assert metrics["policy_objective"] == pytest.approx(reference.logged("policy_objective"), rel=1e-5)
    assert metrics["line_search_success"] == 1.0


def assert_only_the_critic_moved(agent: TRPO, before: dict[str, Any]) -> None:
    for name, value in parameters(agent).items():
        if not name.startswith("critic"):
            np.testing.assert_array_equal(value, before[name])


def without_advantages(agent: TRPO) -> OnPolicyRollout:
    rollout = made_up_rollout(agent)
    zero = np.zeros_like(rollout.values)
    return replace(rollout, values=zero, bootstrap_values=zero, last_values=zero[0], rewards=zero)


def test_step_without_gain_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent("Pendulum-v1", line_search_max_iter=3)
    rollout = made_up_rollout(agent)
    before = parameters(agent)
    monkeypatch.setattr("agents.trpo.conjugate_gradient", lambda product, target, steps: -target)
    metrics = agent.update(rollout, rollout.rewards)
    assert metrics["line_search_success"] == metrics["kl"] == 0.0
    assert_only_the_critic_moved(agent, before)
    assert np.abs(parameters(agent)["critic.4.bias"] - before["critic.4.bias"]).max() > 0


@pytest.mark.parametrize("allow_numpy", [True, False])
def test_equal_advantages_change_nothing(allow_numpy: bool) -> None:
    agent = make_agent("Pendulum-v1", allow_numpy=allow_numpy)
    rollout, before = without_advantages(agent), parameters(agent)
    metrics = agent.update(rollout, rollout.rewards)
    assert metrics["line_search_success"] == metrics["kl"] == 0.0
    assert_only_the_critic_moved(agent, before)


@pytest.mark.parametrize("allow_numpy", [True, False])
def test_entropy_is_gained_where_it_counts(allow_numpy: bool) -> None:
    """Check where all advantages are alike it is all of the objective: torch's, of the new distribution."""
    agent = make_agent("Pendulum-v1", allow_numpy=allow_numpy, ent_coef=0.1)
    rollout, before = without_advantages(agent), parameters(agent)
    metrics = agent.update(rollout, rollout.rewards)
    after = parameters(agent)
    assert metrics["line_search_success"] == 1.0
    assert after["head.log_std"] > before["head.log_std"]
    left = torch.distributions.Normal(0.0, np.exp(after["head.log_std"]).item())
    entropy = left.entropy().item()  # type: ignore[no-untyped-call]
    assert metrics["policy_objective"] == pytest.approx(0.1 * entropy, rel=1e-6)
    for name in after:  # the entropy of a normal distribution does not depend on where it lies
        if name.startswith("actor"):
            np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("allow_numpy", [True, False])
def test_box_actions_are_flattened(allow_numpy: bool) -> None:
    """Only the environment sees the shape."""

    def trained(shape: tuple[int, ...]) -> TRPO:
        envs = counting_envs(action_space=Box(-0.5, 0.5, shape, np.float32))
        agent = TRPO(envs, TRPOConfig(num_steps=16), seed=0, allow_numpy=allow_numpy)
        rollout = agent.collect()
        assert rollout.actions.shape == (16, 3, *shape)
        agent.update(rollout, rollout.rewards)
        return agent

    row = parameters(trained((6,)))
    np.testing.assert_equal(parameters(trained((2, 3))), row)


def test_the_policy_keeps_within_the_limit() -> None:
    agent = make_agent("Reacher-v5", target_kl=0.003)
    rollout = made_up_rollout(agent)
    inputs = agent.policy.tensor(agent.normalizer(rollout.observations)).flatten(0, 1)
    head = agent.policy.head
    assert isinstance(head, GaussianHead)
    old = torch.distributions.Normal(agent.policy.actor(inputs).detach(), head.log_std.exp().detach())
    metrics = agent.update(rollout, rollout.rewards)
    new = torch.distributions.Normal(agent.policy.actor(inputs), head.log_std.exp())
    kl = torch.distributions.kl_divergence(new, old).sum(1).mean().item()
    assert metrics["kl"] == pytest.approx(kl, rel=1e-9)
    assert 0 < kl < 0.003


@pytest.mark.parametrize("max_steps", [12, 30])
def test_conjugate_gradient_solves_what_numpy_solves(max_steps: int) -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(12, 12))
    matrix, target = root @ root.T + np.eye(12), rng.normal(size=12)
    product: Callable[[Tensor], Tensor] = lambda vector: torch.from_numpy(matrix) @ vector  # noqa: E731
    solution = conjugate_gradient(product, torch.from_numpy(target), max_steps, tolerance=1e-20)
    np.testing.assert_allclose(solution.numpy(), np.linalg.solve(matrix, target), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1", "Reacher-v5"])
def test_rounding_does_not_grow_where_the_damping_is_small(env_id: str) -> None:
    """By hand and in torch: the same parameters, also with the damping that CartPole has."""

    def trained(*, allow_numpy: bool) -> dict[str, NDArray[Any]]:
        agent = make_agent(env_id, allow_numpy=allow_numpy, cg_damping=0.001)
        rollout = agent.collect()
        assert agent.update(rollout, rollout.rewards)["line_search_success"] == 1.0
        return parameters(agent)

    by_torch = trained(allow_numpy=False)
    for name, value in trained(allow_numpy=True).items():
        np.testing.assert_allclose(value, by_torch[name], rtol=0, atol=1e-7, err_msg=name)


def test_the_fisher_product_is_that_of_an_explicit_hessian() -> None:
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn((16, 3), generator=rng, dtype=torch.float64)
    weight, log_std = (
        torch.randn(shape, generator=rng, dtype=torch.float64, requires_grad=True) for shape in ((2, 3), (2,))
    )

    def kl(weight: Tensor, log_std: Tensor) -> Tensor:
        new = torch.distributions.Normal(torch.tanh(inputs @ weight.T), log_std.exp())
        return torch.distributions.kl_divergence(new, old).sum(1).mean()

    old = torch.distributions.Normal(torch.tanh(inputs @ weight.T).detach(), log_std.exp().detach())
    hessian: Any = torch.autograd.functional.hessian
    rows = hessian(kl, (weight, log_std))
    sizes = (weight.numel(), log_std.numel())
    explicit = torch.cat(
        [
            torch.cat([block.reshape(height, width) for block, width in zip(row, sizes, strict=True)], 1)
            for row, height in zip(rows, sizes, strict=True)
        ]
    )
    vector = torch.randn(sum(sizes), generator=rng, dtype=torch.float64)
    product = fisher_product(kl(weight, log_std), [weight, log_std], damping=0.25)
    torch.testing.assert_close(product(vector), explicit @ vector + 0.25 * vector)


@pytest.mark.parametrize("space", [Box(-1, 1, (3,), np.float32), Discrete(4)])
def test_the_divergence_is_that_of_torch(space: Any) -> None:
    head = action_head(space).double()
    rng = torch.Generator().manual_seed(0)
    old_outputs, outputs = torch.randn((2, 6, head.num_outputs), generator=rng, dtype=torch.float64)
    snapshot = head.snapshot(old_outputs)
    if isinstance(head, GaussianHead):
        old: Any = torch.distributions.Normal(old_outputs, head.log_std.detach().exp())
        with torch.no_grad():
            head.log_std.add_(torch.tensor([0.3, -0.2, 0.1]))
        new: Any = torch.distributions.Normal(outputs, head.log_std.exp())
        expected = torch.distributions.kl_divergence(new, old).sum(1)
    else:
        old = torch.distributions.Categorical(logits=old_outputs)
        new = torch.distributions.Categorical(logits=outputs)
        expected = torch.distributions.kl_divergence(new, old)
    torch.testing.assert_close(head.kl(snapshot, outputs), expected)
