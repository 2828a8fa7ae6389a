"""The wrapper asks people on a real site: a scripted labeler answers, and the rewards follow."""

import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from teacher import HumanPreferencesEnvWrapper
from teacher.labeling.bots import Bot
from teacher.labeling.embedded_site import SiteHandle
from teacher.settings.options import RewardConfig
from teacher.wrapper import SiteOptions

PATIENCE_SECONDS = 240.0


def make() -> gym.Env[np.ndarray, np.ndarray]:
    return gym.make("Pendulum-v1", render_mode="rgb_array")


@pytest.fixture(params=["here", "elsewhere"])
def where(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SiteHandle, SiteOptions]:
    """The site of this machine, and one that is known by its address and token alone."""
    prompt, unused = "Which is more upright?", str(tmp_path / "unused")
    if request.param == "here":
        site: SiteHandle = request.getfixturevalue("site")
        return site, SiteOptions(name="wrapped", prompt=prompt, state_dir=str(site._folder.state_dir))
    request.getfixturevalue("s3_variables")
    site = request.getfixturevalue("s3_site")
    monkeypatch.setenv("TEACHER_TOKEN", site.token)
    return site, SiteOptions(
        name="wrapped", prompt=prompt, site_url=site.url, storage=site.storage, state_dir=unused
    )


@pytest.mark.timeout(500)
def test_rewards_come_from_what_a_labeler_answers(
    where: tuple[SiteHandle, SiteOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, options = where
    env = HumanPreferencesEnvWrapper(
        make(),
        synthetic_prefs=False,
        env_fn=make,
        segment_length=8,
        n_initial_prefs=6,
        n_initial_training_steps=4,
        validation_interval=4,
        reward=RewardConfig(members=2, hidden=16),
        site=options,
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
    for preference in env.trainer.learning.ledger.preferences():
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
    env.trainer.learning.collector.finish()
    bot.join(PATIENCE_SECONDS)
    assert bot.error is None
    env.close()
    assert not (tmp_path / "unused").exists()
