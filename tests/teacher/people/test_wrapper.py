"""The wrapper asks people on a real site: a scripted labeler answers, and the rewards follow."""

import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from teacher import HumanPreferencesEnvWrapper
from teacher.bots import Bot
from teacher.embedded_site import SiteHandle
from teacher.options import RewardConfig
from teacher.wrapper import SiteOptions

PATIENCE_SECONDS = 240.0


def make() -> gym.Env[np.ndarray, np.ndarray]:
    return gym.make("Pendulum-v1", render_mode="rgb_array")


@pytest.mark.timeout(500)
def test_rewards_come_from_what_a_labeler_answers(
    site: SiteHandle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = HumanPreferencesEnvWrapper(
        make(),
        synthetic_prefs=False,
        env_fn=make,
        segment_length=8,
        n_initial_prefs=6,
        n_initial_training_steps=4,
        validation_interval=4,
        reward=RewardConfig(members=2, hidden=16),
        site=SiteOptions(
            name="wrapped", prompt="Which is more upright?", state_dir=str(site._folder.state_dir)
        ),
        log_dir=tmp_path / "logs",
    )
    assert f"Label here: {env.address}" in capsys.readouterr().out
    bot = Bot(site.url, "wrapped", site.token, "bot")
    bot.start()
    env.reset(seed=1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not env.using_reward_from_predictor:
        assert time.monotonic() < deadline
        _, reward, _, truncated, info = env.step(env.action_space.sample())
        assert reward == 0 or env.using_reward_from_predictor
        if truncated:
            env.reset()
        time.sleep(0.002)  # people are slower than the processor
    _, reward, *_, info = env.step(env.action_space.sample())
    assert reward != info["true_reward"]
    for preference in env.tutor.learner.ledger.preferences():
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
    env.tutor.learner.collector.finish()
    bot.join(PATIENCE_SECONDS)
    assert bot.error is None
    env.close()
