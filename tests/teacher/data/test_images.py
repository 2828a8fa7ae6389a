"""Image observations lie in lossless files beside the demonstrations, and none is read from elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from PIL import Image

from agents.cloning import clone
from agents.ppo import PPO, PPOConfig
from teacher.data.demonstrations import (
    KEYS,
    Demonstrations,
    load_demonstrations,
    record_demonstrations,
    save_demonstrations,
)
from teacher.errors import ConfigError, DataError, StorageError
from tests.environments import Stub

SHAPES = [(8, 6), (8, 6, 1), (8, 6, 3), (8, 6, 4), (4, 8, 6), (8, 6, 2), (2, 8, 6, 3)]


class Screen(Stub):
    """Shows noise, above or below a bright line; the better choice is where the line is. Three steps long."""

    length, terminates = 3, True

    def __init__(self, shape: tuple[int, ...] = (40, 36, 3)) -> None:
        self.observation_space = Box(0, 255, shape, np.uint8)

    def reward(self, action: Any) -> float:
        return float(action == self.side)

    def observe(self) -> NDArray[np.uint8]:
        shape = self.observation_space.shape
        image: NDArray[np.uint8] = self.np_random.integers(100, size=shape, dtype=np.uint8)
        self.side = int(self.np_random.integers(2))
        image[self.side * shape[0] // 2 : (self.side + 1) * shape[0] // 2] += 100
        return image


def look(image: NDArray[np.uint8]) -> int:
    """Return where the picture is brighter."""
    half = len(image) // 2
    return int(image[half:].mean() > image[:half].mean())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "expert.npz"
    save_demonstrations(path, record_demonstrations(look, Screen((8, 6, 3)), n_episodes=2))
    return path


def rewritten(path: Path, obs: Any) -> None:
    with np.load(path) as archive:
        np.savez(path, **{**{key: archive[key] for key in KEYS}, "obs": np.array(obs)})


@pytest.mark.parametrize("shape", SHAPES)
def test_images_come_back_as_they_were(shape: tuple[int, ...], tmp_path: Path) -> None:
    recorded = record_demonstrations(lambda _: 1, Screen(shape), n_episodes=4)
    save_demonstrations(tmp_path / "expert.npz", recorded)
    loaded = load_demonstrations(tmp_path / "expert.npz")
    assert loaded.obs.dtype == np.uint8
    np.testing.assert_array_equal(loaded.obs, recorded.obs)
    assert recorded.final_obs is not None
    assert loaded.final_obs is not None
    np.testing.assert_array_equal(loaded.final_obs, recorded.final_obs)
    with np.load(tmp_path / "expert.npz", allow_pickle=False) as archive:
        names = archive["obs"].tolist()
    assert names == [f"expert-images/{number:02}.png" for number in range(12)]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_files_of_stable_baselines_2_are_read(saved: Path) -> None:
    """It names them relative to its own file, says no shape, and writes JPEG where asked to."""
    folder = saved.parent / "recorded_images"
    folder.mkdir()
    gray = np.arange(48, dtype=np.uint8).reshape(8, 6)
    for number in range(5):
        Image.fromarray(gray).save(folder / f"{number}.png")
    Image.fromarray(np.full_like(gray, 200)).save(folder / "5.jpg")
    rewritten(saved, [f"recorded_images/{n}.png" for n in range(5)] + ["recorded_images/5.jpg"])
    loaded = load_demonstrations(saved)
    np.testing.assert_array_equal(loaded.obs[:5], np.stack([gray[..., None]] * 5))
    assert (loaded.obs[5] == 200).all()


def outside(path: Path) -> str:
    target = path.parent.parent / "secret.png"
    (path.parent / "expert-images" / "2.png").rename(target)
    return str(target)


def link(path: Path) -> str:
    (path.parent / "link.png").symlink_to(outside(path))
    return "link.png"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (lambda path: f"../{Path(outside(path)).name}", "leads outside"),
        (outside, "leads outside"),
        (lambda path: str(path.parent / "expert-images" / "1.png"), "leads outside"),
        (link, "leads outside"),
        (lambda path: "expert-images/9.png", "is missing"),
        (lambda path: "expert-images", "cannot be read: Is a directory|Is a directory"),
        (lambda path: "expert.npz", "is damaged or not a PNG or JPEG file"),
        (lambda path: "a\x00b", "cannot be read: .*null"),
    ],
)
def test_unknown_image_path_is_refused(saved: Path, name: Callable[[Path], str], message: str) -> None:
    names = [f"expert-images/{number}.png" for number in range(6)]
    names[2] = name(saved)
    rewritten(saved, names)
    with pytest.raises(
        DataError, match=f"expert.npz does not contain valid demonstrations: .*({message})"
    ) as caught:
        load_demonstrations(saved)
    assert "\n" not in str(caught.value)


def test_a_damaged_image_is_refused_in_one_line(saved: Path) -> None:
    path = saved.parent / "expert-images" / "3.png"
    content, rng = path.read_bytes(), np.random.default_rng(0)
    damaged = [content[:size] for size in range(0, len(content) - 12, 5)]  # an image may lack its last chunk
    for position in rng.integers(len(content), size=100).tolist():
        damaged.append(content[:position] + b"\xff\x00\x7f" + content[position + 3 :])
    refused = 0
    for some in damaged:
        path.write_bytes(some)
        try:
            load_demonstrations(saved)
        except DataError as error:
            refused += 1
            assert "'expert-images/3.png'" in str(error)  # noqa: PT017 - some damage is to bytes that nobody reads
            assert "\n" not in str(error)  # noqa: PT017
    assert refused > 0.9 * len(damaged)


def test_images_of_several_shapes_are_refused(saved: Path) -> None:
    Image.new("RGB", (5, 8)).save(saved.parent / "expert-images" / "3.png")
    with pytest.raises(
        DataError, match=r"'.*3.png' has shape \(8, 5, 3\) and earlier images have shape \(8, 6, 3\)"
    ):
        load_demonstrations(saved)


def test_images_that_cannot_be_saved_leave_nothing(tmp_path: Path) -> None:
    recorded = record_demonstrations(look, Screen((8, 6)), n_episodes=1)
    (tmp_path / "taken.npz").mkdir()
    with pytest.raises(StorageError, match="cannot write the demonstrations"):
        save_demonstrations(tmp_path / "taken.npz", recorded)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.npz"]
    save_demonstrations(tmp_path / "expert.npz", recorded)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"expert-images already exists; choose another name or remove it"):
        save_demonstrations(tmp_path / "expert.npz", recorded)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere; create it first"):
        save_demonstrations(tmp_path / "nowhere" / "expert.npz", recorded)


def test_a_policy_that_sees_is_cloned_from_files(tmp_path: Path) -> None:
    recorded = record_demonstrations(look, Screen(), n_episodes=40)
    save_demonstrations(tmp_path / "expert.npz", recorded)
    split = load_demonstrations(tmp_path / "expert.npz").split(seed=1, batch_size=16)
    agent = PPO(SyncVectorEnv([Screen]), PPOConfig(), seed=0)
    losses = clone(agent, split, n_epochs=4)
    assert losses[-1].validation < 0.2 * np.log(2), "what guessing costs"
    played = agent.act(split.validation[0], deterministic=True)
    assert (played == split.validation[1][:, 0]).mean() > 0.95


def test_images_are_divided_by_episode(saved: Path) -> None:
    loaded: Demonstrations = load_demonstrations(saved, traj_limitation=1)
    assert loaded.obs.shape == (3, 8, 6, 3)
