"""The predictor of images: its members against networks of torch's own, and what it learns."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents import pixels
from teacher.data.checkpoint import load_state, save_state
from teacher.data.segments import Segment
from teacher.data.steps import StepsBatch
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError
from teacher.reward import images as module
from teacher.reward.images import ImageEnsemble, Images, is_image_space
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.settings.presets import from_options
from tests.teacher.conftest import truthful

MEMBERS = 2
SMALL = spaces.Box(0, 255, (48, 50, 3), np.uint8)
MakeEnsemble = Callable[..., ImageEnsemble]


@pytest.fixture
def make_ensemble() -> MakeEnsemble:
    def make(shape: tuple[int, ...] = (3, 48, 50), **options: float) -> ImageEnsemble:
        config = RewardConfig(members=MEMBERS, **options)  # type: ignore[arg-type]
        return ImageEnsemble(shape, config, torch.Generator().manual_seed(1))

    return make


def images(*batch: int, shape: tuple[int, ...] = (3, 48, 50), seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (*batch, *shape), generator=generator, dtype=torch.uint8)


def reference(ensemble: ImageEnsemble, member: int) -> nn.Sequential:
    """The paper's network for 48 x 50 images, with the numbers of one member."""
    layers: list[nn.Module] = []
    for channels, kernel, stride in ((3, 7, 3), (16, 5, 2), (16, 3, 1), (16, 3, 1)):
        layers += [nn.Conv2d(channels, 16, kernel, stride), nn.BatchNorm2d(16), nn.LeakyReLU(0.01)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 64), nn.LeakyReLU(0.01), nn.Linear(64, 1))
    names = [name for name in network.state_dict() if name.startswith("0.")]
    assert names == ["0.weight", "0.bias"]
    own = iter(sorted_states(ensemble, member))
    network.load_state_dict({name: next(own) for name in network.state_dict()})
    return network


def sorted_states(ensemble: ImageEnsemble, member: int) -> list[Tensor]:
    """One member's numbers by layer, in the order in which torch's layers name theirs."""
    order = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")

    def position(name: str) -> tuple[int, int]:
        layer, _, part = name.removeprefix("weights.").partition("_")
        return int(layer), order.index(part)

    state = ensemble.state_dict()
    return [state[name][member].clone() for name in sorted(state, key=position)]


def test_each_member_is_the_papers_network(make_ensemble: MakeEnsemble) -> None:
    ensemble = make_ensemble(image_dropout=0.0)
    pictures = images(4, 2)
    rewards = ensemble(pictures)
    assert rewards.shape == (MEMBERS, 4, 2)
    for member in range(MEMBERS):
        expected = reference(ensemble, member).eval()(pictures.flatten(0, 1) / 255)
        torch.testing.assert_close(rewards[member].flatten(), expected.flatten(), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(rewards[0], rewards[1], atol=1e-3)
    assert ensemble(images()).shape == (MEMBERS,)


def test_an_atari_frame_stack_comes_down_to_784_numbers(make_ensemble: MakeEnsemble) -> None:
    """The paper's strides give this size; 64 units follow."""
    ensemble = make_ensemble((4, 84, 84))
    shapes = {tuple(weight.shape[1:]) for weight in ensemble.parameters()}
    assert {(16, 4, 7, 7), (16, 16, 5, 5), (16, 16, 3, 3), (64, 784), (1, 64)} <= shapes


def test_training_is_that_of_each_members_network(make_ensemble: MakeEnsemble) -> None:
    """Logits, gradients and the statistics of batch normalization, each from its own minibatch."""
    ensemble = make_ensemble(image_dropout=0.0)
    members = [reference(ensemble, member).train() for member in range(MEMBERS)]
    inputs, weights = images(MEMBERS, 3, 2, 4), torch.tensor([1.0, 0.5, 0.25, 0.1])
    ensemble.train()
    logits = ensemble.logits(inputs, weights)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    ensemble.eval()
    for member, network in enumerate(members):
        rewards = network(inputs[member].flatten(0, 2) / 255).view(3, 2, 4)
        expected = (rewards * weights).sum(dim=-1)
        expected = expected[:, 0] - expected[:, 1]
        torch.testing.assert_close(logits[member], expected, rtol=1e-3, atol=1e-4)
        expected.sum().backward()
        gradient = network[0].weight.grad
        assert isinstance(gradient, Tensor)
        found = ensemble.weights["0_weight"].grad
        assert found is not None
        torch.testing.assert_close(found[member], gradient, rtol=1e-3, atol=1e-4)
        for ours, theirs in zip(sorted_states(ensemble, member), network.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_only_and_follows_from_the_seed(make_ensemble: MakeEnsemble) -> None:
    inputs, weights = images(MEMBERS, 2, 2, 3), torch.ones(3)
    first, second = make_ensemble(), make_ensemble()
    before = first(inputs[0])
    for ensemble in (first, second):
        ensemble.train()
    torch.manual_seed(5)  # whatever else draws random numbers
    drawn = [first.logits(inputs, weights), first.logits(inputs, weights)]
    torch.manual_seed(6)
    again = [second.logits(inputs, weights), second.logits(inputs, weights)]
    assert not torch.allclose(drawn[0], drawn[1], rtol=1e-2)
    for one, other in zip(drawn, again, strict=True):
        torch.testing.assert_close(one, other)
    first.eval()
    torch.testing.assert_close(first(inputs[0]), first(inputs[0]))
    assert not torch.equal(first(inputs[0]), before)  # the statistics have moved


def test_without_batch_normalization_nothing_but_parameters_is_learned(make_ensemble: MakeEnsemble) -> None:
    ensemble = make_ensemble(no_image_batch_norm=True)
    assert len(list(ensemble.buffers())) == 0
    assert len(ensemble.learned()) == 12
    assert all(len(tensor) == MEMBERS for tensor in make_ensemble().learned())


@pytest.mark.parametrize("shape", [(48, 50, 3), (3, 48, 50), (84, 84, 1), (4, 84, 84)])
def test_channels_are_found_on_either_side(shape: tuple[int, ...]) -> None:
    read = Images(spaces.Box(0, 255, shape, np.uint8))
    pictures = np.random.default_rng(0).integers(256, size=(2, 3, *shape), dtype=np.uint8)
    found = read(StepsBatch(pictures, np.zeros((2, 3))))
    channels = min(shape)
    assert found.shape == (2, 3, *read.shape)
    assert read.shape[0] == channels
    assert found.dtype == torch.uint8
    for channel in range(channels):
        expected = np.take(pictures, channel, axis=2 + shape.index(channels))
        np.testing.assert_array_equal(found[:, :, channel], expected)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 2), (4, 6, 5, 2)])
def test_next_states_add_channels(shape: tuple[int, ...]) -> None:
    space, random = spaces.Box(0, 255, shape, np.uint8), np.random.default_rng(0)
    before, after = random.integers(256, size=(2, 3, *shape), dtype=np.uint8)
    steps = StepsBatch(before, np.zeros(3), after)
    alone = Images(space)(steps), Images(space)(StepsBatch(after, np.zeros(3)))
    both = Images(space, "next_state,state")
    torch.testing.assert_close(both(steps), torch.cat(alone, dim=1))
    assert both(steps).shape == (3, *both.shape)
    torch.testing.assert_close(Images(space, "next_state")(steps), alone[1])


@pytest.mark.parametrize(
    "space",
    [
        SMALL,
        *(
            spaces.Box(0, 255, shape, np.uint8)
            for shape in (
                (3, 48, 50),
                (48, 3, 50),
                (3, 48, 3),
                (4, 30, 84),
                (7, 7, 20),
                (5, 5),
                (4, 12, 10, 3),
                (2, 3, 12, 10),
                (2, 2, 2, 2, 2),
                (8,),
            )
        ),
        spaces.Box(0, 1, (48, 50, 3), np.float32),
        spaces.Discrete(4),
    ],
    ids=str,
)
def test_it_takes_for_images_what_agents_do_and_arranges_them_alike(space: spaces.Space[object]) -> None:
    assert is_image_space(space) == pixels.is_image_space(space)
    if is_image_space(space):
        theirs, ours = pixels.ImagePreparation(space), Images(space)
        assert ours.shape == theirs.image_shape
        pictures = np.random.default_rng(0).integers(256, size=(2, 3, *space.shape), dtype=np.uint8)
        np.testing.assert_array_equal(ours(StepsBatch(pictures, np.zeros((2, 3)))), theirs(pictures))


def test_small_images_are_seen_as_if_they_were_enlarged() -> None:
    small, large = (
        ImageEnsemble(shape, RewardConfig(members=MEMBERS), torch.Generator().manual_seed(1))
        for shape in ((2, 9, 14), (2, 45, 70))
    )
    pictures = images(3, shape=(2, 9, 14))
    enlarged = pictures.repeat_interleave(5, dim=-1).repeat_interleave(5, dim=-2)
    torch.testing.assert_close(small(pictures), large(enlarged))


@pytest.mark.parametrize(
    ("sides", "seen"),
    [
        ((84, 84), (84, 84)),
        ((96, 96), (96, 96)),
        ((210, 160), (105, 80)),
        ((250, 160), (125, 80)),
        ((169, 171), (85, 86)),
        ((600, 50), (600, 50)),
        ((480, 640), (69, 92)),
    ],
)
def test_large_images_are_averaged_down(sides: tuple[int, int], seen: tuple[int, int]) -> None:
    """Whole pixels of a smaller image, made of four or more that differ, are what the network sees."""
    factor = -(-sides[0] // seen[0])
    large, small = (
        ImageEnsemble((1, *some), RewardConfig(members=MEMBERS), torch.Generator().manual_seed(1))
        for some in (sides, seen)
    )
    pictures = 100 + images(2, shape=(1, *seen)) // 2
    enlarged = pictures.repeat_interleave(factor, dim=-1).repeat_interleave(factor, dim=-2)
    if factor == 2:
        enlarged[..., ::2, ::2] += 3
        enlarged[..., 1::2, 1::2] -= 3
    rows, columns = sides
    enlarged = enlarged[..., :rows, :columns]
    if factor == 2:  # those at the edge are made of fewer
        enlarged[..., rows - rows % 2 :, :] = pictures[..., -1:, :].repeat_interleave(2, -1)[..., :columns]
        enlarged[..., columns - columns % 2 :] = pictures[..., -1:].repeat_interleave(2, -2)[..., :rows, :]
    assert torch.equal(large.standardize(enlarged), pictures)
    assert torch.equal(large(large.standardize(enlarged)), small(pictures))


def test_predictor_before_averaging_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, config = spaces.Box(0, 255, (170, 168), np.uint8), RewardConfig(members=MEMBERS, inputs="state")
    with monkeypatch.context() as patch:
        patch.setattr(module, "PAPER_SIDE", 1000)
        old = RewardPredictor(space, spaces.Discrete(4), config, seed=1)
    new = RewardPredictor(space, spaces.Discrete(4), config, seed=1)
    state = old.state_dict()
    del state["full_size"]
    pictures, actions = images(5, shape=(170, 168)).numpy(), np.zeros(5)
    expected = old.rewards(pictures, actions)
    assert not np.allclose(new.rewards(pictures, actions), expected)
    for number in range(2):  # its own files, too
        save_state(tmp_path / f"{number}.npz", state)
        restored = RewardPredictor(space, spaces.Discrete(4), config, seed=2)
        restored.load_state_dict(load_state(tmp_path / f"{number}.npz"))
        np.testing.assert_array_equal(restored.rewards(pictures, actions), expected)
        state = restored.state_dict()
    restored.load_state_dict(new.state_dict())
    np.testing.assert_array_equal(restored.rewards(pictures, actions), new.rewards(pictures, actions))


def test_a_state_that_is_refused_leaves_a_predictor_as_it_was() -> None:
    space = spaces.Box(0, 255, (170, 168), np.uint8)
    made, other = (
        RewardPredictor(space, spaces.Discrete(4), RewardConfig(members=members, inputs="state"), seed=1)
        for members in (1, 2)
    )
    pictures, actions = images(5, shape=(170, 168)).numpy(), np.zeros(5)
    expected = made.rewards(pictures, actions)
    state = other.state_dict()
    for full_size in (False, True):
        with pytest.raises(DataError, match="use the settings that it was saved with"):
            made.load_state_dict(state | {"full_size": full_size})
        np.testing.assert_array_equal(made.rewards(pictures, actions), expected)
        assert made.averages_images


def test_a_file_of_averaged_images_is_no_older_versions(tmp_path: Path) -> None:
    for side, version in ((84, 1), (168, 3)):
        space = spaces.Box(0, 255, (side, side), np.uint8)
        predictor = RewardPredictor(space, spaces.Discrete(4), RewardConfig(inputs="state"), seed=1)
        save_predictor(tmp_path / "a.npz", predictor, space, spaces.Discrete(4))
        assert load_state(tmp_path / "a.npz")["about"]["version"] == version
        assert load_predictor(tmp_path / "a.npz").averages_images == (version == 3)


def test_images_without_pixels_are_refused() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="have no pixels"):
        Images(spaces.Box(0, 255, (0, 4), np.uint8))


def test_images_of_another_environment_or_other_inputs_are_refused() -> None:
    with pytest.raises(DataError, match="must be uint8 images of shape"):
        Images(SMALL)(StepsBatch(np.zeros((5, 48, 48, 3), np.uint8), np.zeros(5)))
    with pytest.raises(DataError, match=r"not float32 arrays of shape .*; use data"):
        Images(SMALL)(StepsBatch(np.zeros((5, 48, 50, 3), np.float32), np.zeros(5)))
    with pytest.raises(ConfigError, match=r"^--reward\.inputs must be state, next_state or both"):
        RewardPredictor(SMALL, spaces.Discrete(4), RewardConfig(inputs="state,action"), seed=1)
    with pytest.raises(ConfigError, match=r"^--reward\.features=even can't .* images .*; use plain or auto"):
        RewardPredictor(SMALL, spaces.Discrete(4), RewardConfig(features="even"), seed=1)


@pytest.mark.parametrize("preset", ["default", "paper", "paper_atari"])
def test_each_preset_reads_images(preset: str) -> None:
    given = {"env_id": "teacher/MovingDot-v1", "predictor": "synth", "name": "x", "n_labels": 40}
    settings = from_options({**given, "preset": preset}).reward
    read = RewardPredictor(SMALL, spaces.Discrete(4), settings, seed=1).inputs
    assert read == ({"next_state"} if preset == "default" else {"state"})


def picture_segment(seed: int) -> Segment:
    """Noise of a random brightness, which is the true reward."""
    random = np.random.default_rng(seed)
    brightness = np.full(2, random.integers(40, 200))
    noise = random.integers(-40, 40, size=(2, *(SMALL.shape or ())))
    pictures = (brightness[:, None, None, None] + noise).astype(np.uint8)
    actions = random.integers(4, size=2)
    return Segment(EpisodeRecipe("Any-v0", {}, seed, actions), 0, pictures, actions, brightness / 255)


def test_a_saved_predictor_of_images_goes_on_exactly(tmp_path: Path) -> None:
    """With the statistics of batch normalization, and what is dropped next."""
    answers, config = (
        truthful(6, picture_segment),
        RewardConfig(members=MEMBERS, batch_size=4, inputs="state"),
    )
    model, restored = (RewardPredictor(SMALL, spaces.Discrete(4), config, seed) for seed in (1, 2))
    model.fit(answers, max_epochs=2)
    save_state(tmp_path / "state.npz", model.state_dict())
    restored.load_state_dict(load_state(tmp_path / "state.npz"))
    for _ in range(2):
        assert model.fit(answers, max_epochs=1) == restored.fit(answers, max_epochs=1)
        returns = [one.segment_returns([picture_segment(99)]) for one in (model, restored)]
        assert returns[0] == returns[1]


def test_it_learns_that_brighter_is_better() -> None:
    dataset = truthful(30, picture_segment)
    assert dataset.observations.dtype == np.uint8
    config = RewardConfig(members=MEMBERS, batch_size=8, image_dropout=0.1, inputs="state")
    predictor = RewardPredictor(SMALL, spaces.Discrete(4), config, seed=1)
    predictor.fit(dataset, max_epochs=15)
    fresh = [picture_segment(seed) for seed in range(1000, 1020)]
    correlation = np.corrcoef(predictor.segment_returns(fresh), [segment.true_return for segment in fresh])[
        0, 1
    ]
    assert correlation > 0.85
