"""Agents that see images."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3 as sb3
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents.cloning import Pairs, clone
from agents.errors import ShapeError, StateMismatchError, UnsupportedSpaceError
from agents.on_policy import OnPolicyAgent
from agents.pixels import IMAGES_AT_ONCE, ImagePreparation, NatureCNN, channel_axis
from agents.ppo import PPO, PPOConfig
from agents.trpo import TRPO, TRPOConfig
from tests.agents.conftest import assert_orthogonal, parameters, sb3_model
from tests.environments import Stub

SIDE, SQUARE = 36, 12
NUM_STEPS, NUM_ENVS = 24, 2


class Follow(Stub):
    """A square jumps about on an image of 3 x 3 fields; the action should name the column it is in.

    Reward: 1 where it does, else 0. An episode is 20 steps.
    """

    length = 20

    def __init__(self, shape: tuple[int, int, int] = (SIDE, SIDE, 1)) -> None:
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(3, start=1)

    def reward(self, action: np.int64) -> float:
        return float(action - 1 == self.column)

    def observe(self) -> NDArray[np.uint8]:
        row, self.column = self.np_random.integers(3, size=2)
        return picture(self.column, row, self.observation_space.shape)


def picture(column: int, row: int, shape: tuple[int, ...] | None = (SIDE, SIDE, 1)) -> NDArray[np.uint8]:
    assert shape is not None
    image = np.zeros((SIDE, SIDE), np.uint8)
    image[row * SQUARE : (row + 1) * SQUARE, column * SQUARE : (column + 1) * SQUARE] = 255
    return np.broadcast_to(np.expand_dims(image, channel_axis(shape)), shape).copy()


class Steered(Follow):
    """Use discrete actions."""

    def __init__(self) -> None:
        super().__init__((4, SIDE, SIDE))
        self.action_space: Any = Box(-1, 1, (2,), np.float32)


def vector(
    make: Callable[[], gymnasium.Env[Any, Any]] = Follow,
    num_envs: int = NUM_ENVS,
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
) -> SyncVectorEnv:
    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


def ppo(envs: SyncVectorEnv | None = None, seed: int = 0, **more: Any) -> PPO:
    config = PPOConfig(num_steps=NUM_STEPS, minibatch_size=16, update_epochs=3, ent_coef=0.01)
    return PPO(envs or vector(), config, seed, **more)


def trpo(envs: SyncVectorEnv | None = None, seed: int = 0, **more: Any) -> TRPO:
    config = TRPOConfig(num_steps=NUM_STEPS, minibatch_size=16, n_critic_updates=3)
    return TRPO(envs or vector(), config, seed, **more)


def iterate(agent: OnPolicyAgent, times: int) -> list[dict[str, float]]:
    rollouts = (agent.collect() for _ in range(times))
    return [agent.update(rollout, rollout.rewards) for rollout in rollouts]


def test_it_learns_to_follow_a_square() -> None:
    config = PPOConfig(num_steps=32, update_epochs=4, learning_rate=1e-3, gamma=0.5)
    agent = PPO(vector(num_envs=8), config, seed=0)
    iterate(agent, 5)
    rollout = agent.collect()
    assert rollout.rewards[rollout.valid].mean() > 0.9, "chance is 0.33"
    images = np.stack([picture(column, row) for column in range(3) for row in range(3)])
    np.testing.assert_array_equal(agent.act(images, deterministic=True), np.repeat([1, 2, 3], 3))


def test_training_the_critic_alone_leaves_what_it_shares_with_the_actor() -> None:
    agent = ppo()
    iterate(agent, 1)
    before, rollout = parameters(agent), agent.collect()
    agent._with_new_values(rollout, rollout.rewards, epochs=2)
    moved = {name for name, value in parameters(agent).items() if (value != before[name]).any()}
    assert moved == {"critic.0.weight", "critic.0.bias"}


@pytest.mark.parametrize("make", [Follow, partial(Follow, (4, SIDE, SIDE)), Steered])
def test_an_update_gives_the_parameters_that_stable_baselines3_gives(
    make: Callable[[], Follow], sb3_twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ppo(vector(make), dtype=torch.float64)
    epochs = {"n_epochs": agent.config.update_epochs, "ent_coef": agent.config.ent_coef}
    reference = sb3_twin(sb3_model(sb3.PPO, agent, make, "CnnPolicy", **epochs), agent)
    metrics = reference.assert_updates_alike(monkeypatch, least=1e-3, atol=1e-9)
    assert metrics["approx_kl"] == pytest.approx(reference.logged("approx_kl"), rel=1e-6)


def test_a_trust_region_update_gives_the_parameters_that_sb3_contrib_gives_with_two_trunks(
    sb3_twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = trpo(dtype=torch.float64)
    own: dict[str, Any] = {"policy_kwargs": {"share_features_extractor": False}}
    own["n_critic_updates"] = agent.config.n_critic_updates
    model = sb3_model(sb3_contrib.TRPO, agent, Follow, "CnnPolicy", **own)
    metrics = sb3_twin(model, agent).assert_updates_alike(monkeypatch, least=1e-3, atol=1e-6, whole_batches=1)
    assert metrics["line_search_success"] == 1.0


def test_fitting_the_critic_leaves_a_trust_region_policy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = trpo()
    rollout, before = agent.collect(), parameters(agent)
    monkeypatch.setattr("agents.trpo.conjugate_gradient", lambda product, target, steps: -target)
    agent.update(rollout, rollout.rewards)
    moved = {name for name, value in parameters(agent).items() if (value != before[name]).any()}
    assert moved == {name for name in before if name.startswith("critic.")}
    assert "critic.0.layers.0.weight" in moved, "the critic has convolutions of its own"


@pytest.mark.parametrize(("make_agent", "times"), [(ppo, 2), (trpo, 1)])
def test_the_same_seed_gives_the_same_run_and_a_restored_agent_goes_on(make_agent: Any, times: int) -> None:
    first, second, other = make_agent(), make_agent(), make_agent(seed=1)
    seen = iterate(first, times)
    torch.manual_seed(1)
    assert seen == iterate(second, times)
    assert seen != iterate(other, times)

    other.load_state_dict(first.state_dict())
    first.load_state_dict(first.state_dict())  # new episodes for both
    rollout = first.collect()
    np.testing.assert_array_equal(rollout.actions, other.collect().actions)
    assert first.update(rollout, rollout.rewards) == other.update(rollout, rollout.rewards)
    np.testing.assert_equal(parameters(first), parameters(other))


def test_every_autoreset_mode_shows_the_same_episodes() -> None:
    def images(mode: AutoresetMode) -> list[NDArray[np.uint8]]:
        agent = ppo(vector(mode=mode))
        rollout = agent.collect()
        assert rollout.observations.dtype == np.uint8
        assert (rollout.bootstrap_values != 0).sum() == NUM_ENVS, "one truncation in each"
        return [rollout.observations[rollout.valid[:, env], env] for env in range(NUM_ENVS)]

    reference = images(AutoresetMode.SAME_STEP)
    for mode in AutoresetMode:
        for expected, seen in zip(reference, images(mode), strict=True):
            np.testing.assert_array_equal(seen, expected[: len(seen)])
            assert len(seen) >= NUM_STEPS - 1


def test_it_learns_what_is_shown() -> None:
    fields = np.random.default_rng(0).integers(3, size=(96, 2))
    images = np.stack([picture(column, row) for column, row in fields])

    class Shown:
        train: Pairs = (images[:64], 1 + fields[:64, :1])
        validation: Pairs = (images[64:], 1 + fields[64:, :1])

        def epoch(self) -> Iterator[NDArray[np.intp]]:
            yield from np.array_split(np.arange(64), 4)

    agent = ppo()
    losses = clone(agent, Shown(), n_epochs=8)
    np.testing.assert_array_equal(agent.act(images[64:], deterministic=True), 1 + fields[64:, 0])
    assert losses[-1].validation < 0.1 < losses[0].validation


def test_channels_may_come_first_or_last() -> None:
    first, last = ppo(vector(partial(Follow, (3, SIDE, SIDE)))), ppo(vector(partial(Follow, (SIDE, SIDE, 3))))
    images = np.random.default_rng(0).integers(256, size=(5, 3, SIDE, SIDE), dtype=np.uint8)
    both = [
        agent.policy.actor_function()(agent.normalizer(observations))
        for agent, observations in ((first, images), (last, images.transpose(0, 2, 3, 1)))
    ]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-4, atol=1e-7)
    assert np.ptp(both[0], axis=0).min() > 0


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4, 84, 84), 0),
        ((84, 84, 4), 2),
        ((210, 160, 3), 2),
        ((84, 84, 12), 2),
        ((36, 36, 1), 2),
        ((7, 7, 20), 2),
        ((10, 7, 20), 2),
        ((64, 64, 64), 2),
    ],
)
def test_channels_are_last_unless_the_first_axis_is_the_shortest(shape: tuple[int, ...], axis: int) -> None:
    assert channel_axis(shape) == axis


@pytest.mark.parametrize(
    ("shape", "arranged"),
    [
        ((8, 5), lambda image: image[None]),
        ((7, 7, 20), lambda image: image.transpose(2, 0, 1)),
        ((1, 9, 9), lambda image: image),
        ((4, 12, 10, 3), lambda stack: np.concatenate([image.transpose(2, 0, 1) for image in stack])),
        ((2, 3, 12, 10), np.concatenate),
        ((1, 1), lambda image: image[None]),
    ],
)
def test_images_of_any_shape_become_channels_height_and_width(
    shape: tuple[int, ...], arranged: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
) -> None:
    """Each image of a stack adds its channels."""
    preparation = ImagePreparation(Box(0, 255, shape, np.uint8))
    images = np.random.default_rng(0).integers(256, size=(2, 3, *shape), dtype=np.uint8)
    found = preparation(images)
    assert found.shape == (2, 3, *preparation.image_shape)
    np.testing.assert_array_equal(found[1, 2], arranged(images[1, 2]))


def test_small_images_are_seen_as_if_they_were_enlarged() -> None:
    small = NatureCNN((2, 9, 14), torch.Generator().manual_seed(1))
    large = NatureCNN((2, 36, 56), torch.Generator().manual_seed(1))
    images = np.random.default_rng(0).integers(256, size=(3, 2, 9, 14), dtype=np.uint8)
    enlarged = images.repeat(4, axis=2).repeat(4, axis=3)
    torch.testing.assert_close(small(torch.from_numpy(images)), large(torch.from_numpy(enlarged)))


def test_images_without_pixels_are_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="Image observations can't be empty"):
        ImagePreparation(Box(0, 255, (0, 4), np.uint8))


@pytest.mark.parametrize(
    "observations", [np.zeros((2, SIDE, SIDE, 3), np.uint8), np.zeros((2, SIDE, SIDE, 1), np.float32)]
)
def test_other_images_are_refused(observations: NDArray[Any]) -> None:
    with pytest.raises(
        ShapeError, match=r"Expected uint8 images of shape \(36, 36, 1\), got \w+ arrays of shape \(36, "
    ):
        ppo().act(observations, deterministic=True)


def test_the_state_of_an_agent_with_another_network_is_refused() -> None:
    agent = ppo()
    for other in (trpo(), ppo(vector(Steered)), PPO(SyncVectorEnv([numbers]), PPOConfig(), seed=0)):
        with pytest.raises(StateMismatchError, match="The saved policy's parameter shapes are"):
            agent.load_state_dict(other.state_dict())


def numbers() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    "wrapper",
    [
        gymnasium.wrappers.FlattenObservation,
        partial(gymnasium.wrappers.DtypeObservation, dtype=np.float32),
    ],
)
def test_other_spaces_are_flattened(wrapper: Any) -> None:
    agent = ppo(vector(lambda: wrapper(Follow())))
    (size,) = agent.normalizer.statistics.mean.shape
    assert size % SIDE**2 == 0
    iterate(agent, 1)


def test_many_images_go_through_in_parts_with_the_same_result() -> None:
    policy = ppo().policy
    shape = (IMAGES_AT_ONCE + 30, 1, SIDE, SIDE)
    images = torch.from_numpy(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))
    whole = policy.values(images)
    with torch.no_grad():
        torch.testing.assert_close(policy.values(images), whole.detach())


def test_weights_are_orthogonal_with_the_gain_of_their_place() -> None:
    policy = trpo().policy
    assert_orthogonal(policy.actor, [2**0.5] * 4 + [0.01])
    assert_orthogonal(policy.critic, [2**0.5] * 4 + [1.0])
