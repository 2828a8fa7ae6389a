"""SAC's gradient steps equal those of Stable-Baselines3."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from stable_baselines3 import SAC as SB3SAC
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

from agents.sac_step import Minibatch, SACConfig, SACStep
from agents.squashed_gaussian import SquashedActorCritic, TwinCritic

ACTIONS = Box(-2.0, 2.0, (2,), np.float64)
OBSERVATIONS = Box(-np.inf, np.inf, (5,), np.float64)


def make_policy(**changes: Any) -> tuple[SquashedActorCritic, SACConfig]:
    config = SACConfig(**{"hidden_sizes": (32, 16), "learning_rate": 1e-3, **changes})
    generator = torch.Generator().manual_seed(1)
    policy = SquashedActorCritic(5, ACTIONS, generator, config.hidden_sizes, config.activation)
    return policy.double(), config


def make_batch(n: int = 64, seed: int = 0) -> tuple[Minibatch, torch.Tensor]:
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((n, 5)), rng.uniform(-1, 1, (n, 2)), rng.standard_normal((n, 5))
    rest = rng.standard_normal(n), (rng.random(n) < 0.2).astype(np.float64)
    noise = torch.from_numpy(rng.standard_normal((2, n, 2)))
    return Minibatch(*map(torch.from_numpy, (*arrays, *rest))), noise


class _Env(gym.Env[Any, Any]):
    observation_space, action_space = OBSERVATIONS, ACTIONS


def sb3_with(policy: SquashedActorCritic, config: SACConfig) -> SB3SAC:
    """Return SB3's agent with our parameters, in float64."""
    sb3 = SB3SAC(
        "MlpPolicy", _Env(), learning_rate=config.learning_rate, batch_size=64, gamma=config.gamma,
        tau=config.tau, ent_coef=config.ent_coef,
        policy_kwargs={"net_arch": list(config.hidden_sizes)}, device="cpu",
    )  # fmt: skip
    for module in (sb3.actor, sb3.critic, sb3.critic_target):
        module.double()
    if sb3.log_ent_coef is not None:
        sb3.log_ent_coef.data = sb3.log_ent_coef.data.double()
    sb3.set_logger(configure(None, []))
    with torch.no_grad():
        layers = [module for module in policy.actor if isinstance(module, nn.Linear)]
        for ours, theirs in zip(layers[:-1], linear(sb3.actor.latent_pi), strict=True):
            theirs.weight.copy_(ours.weight)
            theirs.bias.copy_(ours.bias)
        for head, part in ((sb3.actor.mu, slice(0, 2)), (sb3.actor.log_std, slice(2, 4))):
            assert isinstance(head, nn.Linear)
            head.weight.copy_(layers[-1].weight[part])
            head.bias.copy_(layers[-1].bias[part])
        for critic, q_networks in ((policy.critic, sb3.critic), (policy.target, sb3.critic_target)):
            for which, network in enumerate(q_networks.q_networks):
                for (weight, bias), layer in zip(layers_of(critic, which), linear(network), strict=True):
                    layer.weight.copy_(weight)
                    layer.bias.copy_(bias)
    return sb3


def linear(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def layers_of(critic: TwinCritic, which: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return weights ``(outputs, inputs)`` and biases of one of the critics."""
    first, *middle, last = critic.weights
    weights = [first[:, which].T, *(weight[which].T for weight in middle), last[which]]
    return [(weight, bias[which, 0]) for weight, bias in zip(weights, critic.biases, strict=True)]


@pytest.mark.parametrize(
    "changes", [{}, {"ent_coef": 0.3}, {"ent_coef": "auto_0.1", "gamma": 0.9, "tau": 0.5}]
)
def test_steps_equal_those_of_sb3(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *_, **__: obs)
    policy, config = make_policy(**changes)
    sb3, step = sb3_with(policy, config), SACStep(policy, config)
    for number in range(5):
        batch, noise = make_batch(seed=number)
        drawn = iter([noise[0], noise[1]])
        samples = ReplayBufferSamples(
            batch.observations, batch.actions, batch.next_observations,
            batch.terminated[:, None], batch.rewards[:, None],
        )  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(sb3.replay_buffer, "sample", lambda *_, drawn=samples, **__: drawn)
            patch.setattr(
                torch.distributions.Normal,
                "rsample",
                lambda self, shape=(), drawn=drawn: self.loc + self.scale * next(drawn),
            )
            sb3.train(1, 64)
        step(batch, noise)
        with torch.no_grad():
            mine = policy.actor(batch.observations)
            mu, log_std, _ = sb3.actor.get_action_dist_params(batch.observations)
            torch.testing.assert_close(mine, torch.cat([mu, log_std], 1), rtol=0, atol=1e-6)
            for critic, theirs in ((policy.critic, sb3.critic), (policy.target, sb3.critic_target)):
                q = torch.cat(theirs(batch.observations, batch.actions), 1).T
                torch.testing.assert_close(critic(batch.observations, batch.actions), q, rtol=0, atol=1e-6)
    if sb3.log_ent_coef is not None:
        assert step.log_ent_coef.item() == pytest.approx(sb3.log_ent_coef.item(), abs=1e-6)


def test_targets_follow_at_their_interval() -> None:
    policy, config = make_policy(target_update_interval=3, tau=1.0)
    step, equal = SACStep(policy, config), []
    for number in range(6):
        step(*make_batch(seed=number))
        equal.append(all(map(torch.equal, policy.critic.parameters(), policy.target.parameters())))
    assert equal == [False, False, True, False, False, True]


def test_state_of_the_optimizers_is_restored() -> None:
    policy, config = make_policy()
    step = SACStep(policy, config)
    step(*make_batch(seed=0))
    state, parameters = step.state_dict(), {k: v.clone() for k, v in policy.state_dict().items()}
    step(*make_batch(seed=1))
    expected = torch.cat([parameter.flatten() for parameter in policy.parameters()])
    other_policy, _ = make_policy()
    other = SACStep(other_policy, config)
    other_policy.load_state_dict(parameters)
    other.load_state_dict(state)
    other(*make_batch(seed=1))
    found = torch.cat([parameter.flatten() for parameter in other_policy.parameters()])
    assert (found == expected).all()
    assert other.log_ent_coef.item() == step.log_ent_coef.item()
