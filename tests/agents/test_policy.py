"""Policies, their action heads against torch's and their export; normalization, also far from 0."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from agents.cloning import clone
from agents.errors import UnsupportedSpaceError
from agents.heads import CategoricalHead, GaussianHead, MultiCategoricalHead, action_head
from agents.normalize import CLIP, ObservationNormalizer, RewardScaler
from agents.numerics.moments import RunningMoments
from agents.policy import MLPActorCritic
from agents.portable import PortablePolicy
from agents.ppo import PPO, PPOConfig
from tests.agents.conftest import Shown, assert_orthogonal, counting_envs
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
    assert_orthogonal(policy.actor, [2**0.5, 2**0.5, 0.01])
    assert_orthogonal(policy.critic, [2**0.5, 2**0.5, 1.0])


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


def box(*shape: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float64)


@pytest.mark.parametrize("sizes", [[1000], [1, 999], [300, 0, 1, 699], [1] * 1000])
def test_statistics_equal_those_of_all_samples_in_one(sizes: list[int]) -> None:
    samples = np.random.default_rng(0).normal(50.0, [0.1, 1.0, 30.0], (1000, 3))
    statistics = RunningMoments((3,))
    for batch in np.split(samples, np.cumsum(sizes)[:-1]):
        statistics.update(batch)
    np.testing.assert_allclose(statistics.mean, samples.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, samples.var(0), rtol=1e-9)
    assert statistics.count == 1000


def test_single_precision_samples_far_from_zero_keep_their_variance() -> None:
    samples = np.random.default_rng(0).normal(1e4, 1.0, (10_000, 1)).astype(np.float32)
    statistics = RunningMoments((1,))
    for batch in np.split(samples, 100):
        statistics.update(batch)
    np.testing.assert_allclose(statistics.variance, samples.astype(np.float64).var(0), rtol=1e-9)


def test_before_the_first_update_observations_are_only_flattened_and_clipped() -> None:
    normalizer = ObservationNormalizer(box(2, 2))
    normalized = normalizer(np.array([[[1.0, -2.0], [3.0, 400.0]]]))
    np.testing.assert_allclose(normalized, [[1.0, -2.0, 3.0, CLIP]], rtol=1e-6)


def test_observations_become_standard_whatever_the_batch_shape() -> None:
    observations = np.random.default_rng(0).normal(7.0, 3.0, (50, 20, 2, 2))
    normalizer = ObservationNormalizer(box(2, 2))
    normalizer.update(observations.reshape(-1, 2, 2))
    normalized = normalizer(observations)
    assert normalized.shape == (50, 20, 4)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized.mean((0, 1)), 0, atol=1e-6)
    np.testing.assert_allclose(normalized.std((0, 1)), 1, atol=1e-6)


def test_observations_that_are_not_to_be_normalized_are_only_flattened() -> None:
    normalizer = ObservationNormalizer(box(2, 2), learns=False)
    normalizer.update(np.random.default_rng(0).normal(7.0, 3.0, (50, 2, 2)))
    observations = np.array([[[1.0, -2.0], [3.0, 400.0]]])
    np.testing.assert_array_equal(normalizer(observations), observations.reshape(1, 4).astype(np.float32))
    assert normalizer.statistics.count == 0


def test_statistics_that_a_policy_came_with_are_kept_as_they_were() -> None:
    learned = ObservationNormalizer(box(1))
    learned.update(np.arange(10.0)[:, None])
    normalizer = ObservationNormalizer(box(1), learns=False)
    normalizer.statistics.load_state_dict(learned.statistics.state_dict())
    normalizer.update(np.full((10, 1), 99.0))
    probe = np.array([[3.0], [4.0]])
    np.testing.assert_array_equal(normalizer(probe), learned(probe))


def test_a_constant_component_stays_finite() -> None:
    normalizer = ObservationNormalizer(box(1))
    normalizer.update(np.full((10, 1), 3.0))
    np.testing.assert_array_equal(normalizer(np.array([[3.0], [4.0]])), [[0.0], [CLIP]])


def test_a_space_that_is_no_box_is_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="space must be a non-empty Box, not Dict"):
        ObservationNormalizer(gymnasium.spaces.Dict({"position": box(2)}))


def test_a_space_of_nothing_and_a_long_one_are_refused_in_one_line() -> None:
    low = np.arange(100, dtype=np.float32)
    long = gymnasium.spaces.Tuple([gymnasium.spaces.Box(low, low + 1)])
    for space in (box(0), long):
        with pytest.raises(
            UnsupportedSpaceError,
            match=r"^The observation space must be a non-empty Box, .*; wrap the environment\.$",
        ):
            ObservationNormalizer(space)


def test_rewards_are_scaled_by_the_standard_deviation_of_returns() -> None:
    """Over two rollouts, with episodes that span them and dummy steps between episodes."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(5.0, 2.0, (60, 2))
    ended, valid = np.zeros((60, 2), bool), np.ones((60, 2), bool)
    ended[[9, 33], 0] = ended[[29, 45], 1] = True
    valid[[10, 34], 0] = valid[[30, 46], 1] = False
    rewards[~valid] = 0.0

    returns = []
    for env in range(2):
        running = 0.0
        for t in range(60):
            if valid[t, env]:
                running = 0.9 * running + rewards[t, env]
                returns.append((t, running))
            if ended[t, env]:
                running = 0.0

    scaler = RewardScaler(2, gamma=0.9)
    for part in (slice(0, 30), slice(30, 60)):
        scaled = scaler(rewards[part], ended[part], valid[part])
        deviation = np.std([value for t, value in returns if t < part.stop])
        np.testing.assert_allclose(scaled, rewards[part] / deviation, rtol=1e-7)


def test_scaled_rewards_are_clipped() -> None:
    rewards = np.zeros((1000, 1))
    rewards[50] = 1000.0
    scaled = RewardScaler(1, gamma=0.0)(rewards, np.zeros((1000, 1), bool), np.ones((1000, 1), bool))
    assert scaled.max() == CLIP


OFFSETS = np.array([1e9, 0.0, -4e8])


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_observations_far_from_0_are_normalized_as_those_around_it(dtype: type) -> None:
    space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    near, far = ObservationNormalizer(space), ObservationNormalizer(space)
    around: NDArray[Any] = np.random.default_rng(0).normal(0, [1, 10, 100], (1000, 3)).round().astype(dtype)
    beyond = around + OFFSETS.astype(dtype)
    for batch in np.split(np.arange(1000), 10):
        near.update(around[batch])
        far.update(beyond[batch])
    np.testing.assert_allclose(far(beyond), near(around), rtol=0, atol=1e-5)
    assert far(beyond).dtype == np.float32


def test_policy_is_cloned_far_from_zero() -> None:
    random, losses = np.random.default_rng(0), []
    observations = random.normal(0, [1, 10, 0.5], (512, 3)).round(3)
    actions = 0.5 * np.tanh(observations[:, :2] / [1, 10]).astype(np.float32)
    nothing: Any = observations[:0], actions[:0]
    for offsets in (np.zeros(3), OFFSETS):
        agent = PPO(counting_envs(), PPOConfig(num_steps=4), seed=1)
        losses.append(clone(agent, Shown((observations + offsets, actions), nothing), n_epochs=20)[-1].train)
    assert losses[1] < 0.01
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
