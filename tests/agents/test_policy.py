"""Policies: their two forward passes, their action heads against torch's distributions, and their export."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from agents.errors import UnsupportedSpaceError
from agents.heads import CategoricalHead, GaussianHead, MultiCategoricalHead, action_head
from agents.policy import MLPActorCritic
from agents.portable import PortablePolicy
from tests.models import AGENTS, OTHER_AGENTS, AgentCase

BOX = gymnasium.spaces.Box(-0.4, 0.4, (2, 3), np.float64)
DISCRETE = gymnasium.spaces.Discrete(4, start=-2)


def make_policy(space: gymnasium.Space[object], seed: int = 0) -> MLPActorCritic:
    return MLPActorCritic(5, space, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("space", [BOX, DISCRETE])
def test_both_forward_passes_agree(space: gymnasium.Space[object]) -> None:
    policy = make_policy(space)
    for parameter in policy.actor.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    inputs = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    expected = policy.actor(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(policy.actor_function()(inputs), expected, rtol=1e-5, atol=1e-7)


def test_weights_are_orthogonal_with_the_gain_of_their_place() -> None:
    policy = make_policy(BOX)
    for network, output_gain in ((policy.actor, 0.01), (policy.critic, 1.0)):
        layers = [module for module in network if isinstance(module, nn.Linear)]
        for layer, gain in zip(layers, [2**0.5, 2**0.5, output_gain], strict=True):
            weight = layer.weight.detach()
            short = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(short, gain**2 * torch.eye(len(short)), atol=1e-5, rtol=0)
            assert not layer.bias.any()


def test_initialisation_depends_on_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = make_policy(BOX, 1), make_policy(BOX, 1), make_policy(BOX, 2)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.actor.parameters()), next(other.actor.parameters()))


def gaussian_head() -> GaussianHead:
    head = GaussianHead(BOX)
    nn.init.normal_(head.log_std, generator=torch.Generator().manual_seed(1))
    return head


def test_gaussian_log_probability_and_entropy_equal_torchs() -> None:
    head, generator = gaussian_head(), torch.Generator().manual_seed(0)
    means, actions = torch.randn(7, 6, generator=generator), torch.randn(7, 2, 3, generator=generator)
    expected: Any = Independent(Normal(means, head.log_std.exp()), 1)
    log_probs, entropy = head.log_prob_and_entropy(means, actions)
    torch.testing.assert_close(log_probs, expected.log_prob(actions.flatten(1)))
    torch.testing.assert_close(entropy, expected.entropy())


def test_categorical_log_probability_and_entropy_equal_torchs() -> None:
    head, generator = CategoricalHead(DISCRETE), torch.Generator().manual_seed(0)
    logits, actions = 3 * torch.randn(7, 4, generator=generator), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    expected: Any = Categorical(logits=logits)
    log_probs, entropy = head.log_prob_and_entropy(logits, actions)
    torch.testing.assert_close(log_probs, expected.log_prob(actions))
    torch.testing.assert_close(entropy, expected.entropy())


def test_gaussian_samples_have_the_mean_and_standard_deviation() -> None:
    head = gaussian_head()
    means = np.linspace(-2, 2, 6, dtype=np.float32)
    noise = head.perturbation(np.random.default_rng(0), (200, 500))
    samples = head.choose((means + noise).reshape(-1, 6)).reshape(-1, 6)
    std = head.log_std.detach().exp().numpy()
    np.testing.assert_allclose(samples.mean(0), means, atol=5 * std.max() / np.sqrt(len(samples)))
    np.testing.assert_allclose(samples.std(0), std, rtol=0.02)
    np.testing.assert_allclose(np.corrcoef(samples.T), np.eye(6), atol=0.02)


def test_categorical_samples_have_the_softmaxs_frequencies() -> None:
    head = CategoricalHead(DISCRETE)
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    samples = head.choose(logits + head.perturbation(np.random.default_rng(0), (100_000,)))
    np.testing.assert_allclose(np.bincount(samples) / len(samples), [0.1, 0.2, 0.3, 0.4], atol=0.01)


def test_only_the_executed_action_is_clipped_and_has_the_spaces_type() -> None:
    head = gaussian_head()
    outputs = np.array([[-3.0, 0.1, 3.0, 0.0, 0.4, -0.4]], dtype=np.float32)
    actions = head.choose(outputs)
    np.testing.assert_array_equal(actions.ravel(), outputs.ravel())
    executed = head.executed(actions)
    assert executed[0].shape == (2, 3)
    assert BOX.contains(executed[0])
    np.testing.assert_allclose(executed.ravel(), [-0.4, 0.1, 0.4, 0.0, 0.4, -0.4], rtol=1e-6)


def test_discrete_actions_are_executed_from_the_spaces_start() -> None:
    head = CategoricalHead(DISCRETE)
    actions = head.choose(np.eye(4))
    np.testing.assert_array_equal(actions, [0, 1, 2, 3])
    executed = head.executed(actions)
    np.testing.assert_array_equal(executed, [-2, -1, 0, 1])
    assert all(DISCRETE.contains(action) for action in executed)


def test_components_of_a_multi_discrete_action_are_independent_categoricals() -> None:
    space = gymnasium.spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [-1, 5]]))
    head = MultiCategoricalHead(space).double()
    rng = np.random.default_rng(0)
    old_outputs, outputs = torch.from_numpy(rng.normal(size=(2, 6, 11)))
    actions = head.choose(outputs.numpy() + head.perturbation(rng, (6,)))
    assert actions.shape == (6, 2, 2)
    assert all(space.contains(action) for action in head.executed(actions))

    def components(logits: Tensor) -> list[Any]:
        return [Categorical(logits=part) for part in torch.split(logits, [2, 3, 4, 2], 1)]

    log_probs, entropies = head.log_prob_and_entropy(outputs, torch.from_numpy(actions))
    columns = torch.from_numpy(actions).flatten(1).T
    expected = [one.log_prob(column) for one, column in zip(components(outputs), columns, strict=True)]
    torch.testing.assert_close(log_probs, torch.stack(expected).sum(0))
    torch.testing.assert_close(entropies, torch.stack([one.entropy() for one in components(outputs)]).sum(0))
    divergences = map(torch.distributions.kl_divergence, components(outputs), components(old_outputs))
    torch.testing.assert_close(
        head.kl(head.snapshot(old_outputs), outputs), torch.stack(list(divergences)).sum(0)
    )


def test_samples_of_a_multi_discrete_space_follow_its_probabilities() -> None:
    head = MultiCategoricalHead(gymnasium.spaces.MultiDiscrete([2, 3]))
    logits = np.log([0.1, 0.9, 0.2, 0.3, 0.5])[None]
    samples = head.choose(logits + head.perturbation(np.random.default_rng(0), (100_000,)))
    np.testing.assert_allclose(np.bincount(samples[:, 0]) / len(samples), [0.1, 0.9], atol=0.01)
    np.testing.assert_allclose(np.bincount(samples[:, 1]) / len(samples), [0.2, 0.3, 0.5], atol=0.01)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.MultiBinary(2),
        gymnasium.spaces.Box(0, 5, (2,), np.int64),
        gymnasium.spaces.Box(0, 5, (0,), np.float32),
    ],
)
def test_other_action_spaces_are_refused(space: gymnasium.Space[object]) -> None:
    with pytest.raises(
        UnsupportedSpaceError, match=r"^The action space must be a non-empty Box of floats, .*, not"
    ):
        action_head(space)


CASES = {**AGENTS, **OTHER_AGENTS}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_acts_like_the_agent(case: AgentCase) -> None:
    agent, observations = case.agent(), case.observations()
    expected = agent.act(observations, deterministic=True)
    with torch.no_grad():
        actions, *_ = PortablePolicy(agent)(torch.from_numpy(observations))
    assert actions.numpy().dtype == expected.dtype
    np.testing.assert_allclose(actions.numpy(), expected, atol=1e-5)
    assert len(np.unique(expected, axis=0)) > 1  # not the same action everywhere


@pytest.mark.parametrize("case", [AGENTS["ppo"], AGENTS["sac"]], ids=["ppo", "sac"])
def test_mean_and_std_are_those_of_sampled_actions(case: AgentCase) -> None:
    agent = case.agent()
    observation = case.observations()[:1]
    policy = PortablePolicy(agent)
    assert policy.outputs == ("action", "mean", "std")
    with torch.no_grad():
        _, mean, std = policy(torch.from_numpy(observation))
    sampled = torch.from_numpy(agent.act(np.repeat(observation, 4000, axis=0), deterministic=False))
    noise = torch.randn(4000, mean.shape[1], generator=torch.Generator().manual_seed(1))
    gaussian = mean + std * noise
    low, high = torch.from_numpy(case.action_space.low), torch.from_numpy(case.action_space.high)  # type: ignore[attr-defined]
    if case is AGENTS["sac"]:
        gaussian = gaussian.tanh() * (high - low) / 2 + (high + low) / 2
    expected = torch.minimum(torch.maximum(gaussian.view(sampled.shape), low), high)
    torch.testing.assert_close(sampled.mean(0), expected.mean(0), atol=0.1, rtol=0)
    torch.testing.assert_close(sampled.std(0), expected.std(0), atol=0.1, rtol=0)
