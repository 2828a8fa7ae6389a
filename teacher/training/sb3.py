"""Policies to and from Stable-Baselines3's zip files.

Such a file contains pickles, which are never loaded here: only JSON and the networks' tensors are read, the
latter by torch's restricted loader. Observation statistics are in an ``.npz`` file of the same name, which
has the attributes of ``VecNormalize.obs_rms``.
"""

import io
import json
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from agents.base import Agent, to_arrays
from agents.errors import StateMismatchError
from agents.normalize import ObservationNormalizer
from agents.pixels import SMALLEST_SIDE, ImageActorCritic, ImagePreparation
from agents.policy import ACTIVATIONS, MLPActorCritic
from agents.sac import SAC
from agents.squashed_gaussian import SquashedActorCritic
from teacher.data.checkpoint import State
from teacher.errors import ConfigError, DataError
from teacher.extras import require_extra
from teacher.files import opened_archive, refusing_damage, require_new, saved

SB3_SUFFIX = ".zip"
_PURPOSE = "a file for Stable-Baselines3"
_MOST_BYTES, _MOST_NUMBERS = 2**30, 2**28  # of a member of a zip file, and of all its tensors


class _Spaces(gym.Env[Any, Any]):
    """An environment of which only the spaces are used, as Stable-Baselines3's constructors need one."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def save_sb3(agent: Agent, observation_space: spaces.Space[Any], path: Path) -> tuple[str, Path | None]:
    """Write a policy to a new zip file that Stable-Baselines3's ``SAC.load`` or ``PPO.load`` opens.

    TRPO's policies are written as PPO's, which have the same networks. The discount factor is kept; other
    hyperparameters are Stable-Baselines3's defaults. If the policy normalizes observations, their statistics
    are written to an ``.npz`` file of the same name.

    Returns:
        The algorithm, ``PPO`` or ``SAC``, and the file of statistics, None if observations aren't normalized.
    """
    library = require_extra("stable_baselines3", _PURPOSE, "sb3")
    vectors = require_extra("stable_baselines3.common.vec_env", _PURPOSE, "sb3")
    env = vectors.DummyVecEnv([lambda: _Spaces(observation_space, agent.policy.head.space)])
    given: dict[str, Any] = {"device": "cpu", "gamma": agent.config.gamma}
    policy, sizes = agent.policy, list(agent.config.hidden_sizes)
    settings = {"net_arch": sizes, "activation_fn": ACTIVATIONS[agent.config.activation].module}
    if isinstance(agent, SAC):
        # The saved size is that of the buffer after loading; a buffer to save from needs no room.
        model = library.SAC("MlpPolicy", env, policy_kwargs=settings, buffer_size=1, **given)
        model.buffer_size = agent.config.buffer_size
    elif isinstance(policy, ImageActorCritic):
        settings = {"share_features_extractor": len(policy.critic) == 1}
        model = library.PPO("CnnPolicy", env, policy_kwargs=settings, **given)
    else:
        model = library.PPO("MlpPolicy", env, policy_kwargs=settings, **given)
    model.policy.load_state_dict(to_theirs(policy.state_dict(), model.policy.state_dict().keys()))
    with saved(path, str(path), new=True) as file:
        model.save(file)
    normalizer = agent.normalizer
    if not (isinstance(normalizer, ObservationNormalizer) and normalizer.scales):
        return type(model).__name__, None
    statistics, beside = normalizer.statistics, statistics_beside(path)
    with saved(beside, str(beside), new=True) as file:
        mean, var = (array.reshape(normalizer.shape) for array in (statistics.mean, statistics.variance))
        np.savez(file, mean=mean, var=var, count=np.asarray(statistics.count))
    return type(model).__name__, beside


def statistics_beside(path: Path) -> Path:
    """Return the file for the observation statistics of the policy in a zip file."""
    return path.with_suffix(".npz")


def require_supported(agent: Agent, observation_space: spaces.Space[Any], path: Path) -> None:
    """Check that a policy can be written for Stable-Baselines3; see :func:`save_sb3` for the arguments."""
    require_extra("stable_baselines3", _PURPOSE, "sb3")
    require_new(statistics_beside(path))
    policy, space = agent.policy, agent.policy.head.space
    if not isinstance(policy, MLPActorCritic | ImageActorCritic | SquashedActorCritic):
        found = "custom networks"
    elif np.any(getattr(space, "start", 0)):
        found = "actions that don't start at 0"
    elif isinstance(space, spaces.MultiDiscrete) and len(space.shape) > 1:
        found = f"MultiDiscrete actions of shape {space.shape}"
    elif isinstance(space, spaces.Box) and not space.is_bounded():
        found = "unbounded actions"
    elif isinstance(policy, ImageActorCritic) and not _is_image(observation_space):
        found = f"image observations of shape {observation_space.shape}"
    else:
        return
    raise ConfigError(
        f"cannot write {path}: Stable-Baselines3 can't use policies with {found}; export with --onnx instead"
    )


def _is_image(space: spaces.Space[Any]) -> bool:
    """Return True if Stable-Baselines3's convolutional network takes the images as they are."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    is_large = min(ImagePreparation(space).image_shape[1:]) >= SMALLEST_SIDE
    return is_large and bool(np.all(space.low == 0) and np.all(space.high == 255))


def read_sb3(path: Path) -> State:
    """Read a policy from a zip file written by Stable-Baselines3's ``save``, without unpickling anything.

    If there is an ``.npz`` file of the same name, it must contain the observation statistics: ``mean``,
    ``var`` and ``count``.

    Returns:
        An agent's state dict with only ``policy`` and ``normalizer``, and ``activation``, the name of the
        activation function.
    """
    with (
        refusing_damage(f"{path} is not a readable file of Stable-Baselines3", AttributeError),
        zipfile.ZipFile(path) as file,
    ):
        settings = json.loads(_member(file, "data"))
        weights = _member(file, "policy.pth")
        activation = _activation(settings, path)
    try:
        tensors = _tensors(weights)
    except Exception as error:  # torch raises many kinds
        raise DataError(
            f"{path}: policy.pth contains more than tensors, or is damaged; save it again"
        ) from error
    try:
        arrays = to_arrays(to_ours(tensors))
    except (KeyError, RuntimeError) as error:
        raise _other_networks(path, f"the parameter {error}") from error
    return {"policy": arrays, "normalizer": _statistics(path, arrays), "activation": activation}


def _tensors(weights: bytes) -> dict[str, Tensor]:
    """Read tensors with torch's restricted loader, which fails on other objects."""
    tensors = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    if sum(tensor.numel() for tensor in tensors.values()) > _MOST_NUMBERS:  # few bytes, if strides are 0
        raise ValueError("the tensors have too many elements")
    return {str(name): tensor.float() for name, tensor in tensors.items()}


def _member(file: zipfile.ZipFile, name: str) -> bytes:
    if file.getinfo(name).file_size > _MOST_BYTES:
        raise ValueError(f"{name} has more than 1 GiB")
    return file.read(name)


def _activation(settings: dict[str, Any], path: Path) -> str:
    """Return the name of the activation function, after checking the settings that change a policy's outputs.

    Settings that are pickled also have a description in JSON, which is what this reads.
    """
    options = settings["policy_kwargs"]
    for name, value, unsupported in (
        ("use_sde", settings.get("use_sde"), True),
        ("normalize_images", options.get("normalize_images"), False),
    ):
        if str(value) == str(unsupported):
            raise _other_networks(path, f"{name}={value}")
    default = "ReLU" if "target_entropy" in settings else "Tanh"
    name = re.sub(r"\W+$", "", str(options.get("activation_fn", default))).rpartition(".")[2].lower()
    if name not in ACTIVATIONS:
        raise _other_networks(path, f"the activation function {name}")
    return name


def _other_networks(path: Path, found: str) -> DataError:
    return DataError(
        f"{path}: expected a PPO, A2C, TRPO or SAC policy of Stable-Baselines3 with its built-in MLP or CNN, "
        f"found {found}; record its episodes and pass --demonstrations instead"
    )


def _statistics(path: Path, policy: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the observation statistics beside a zip file, or those of no observations if there are none."""
    weight = policy.get("actor.0.weight")
    size = 0 if weight is None else weight.shape[1]  # images are not normalized
    beside = statistics_beside(path)
    if not size or not beside.exists():
        return {"mean": np.zeros(size), "variance": np.ones(size), "count": 0}
    expected = f"{beside} has no observation statistics; expected mean, var and count, from numpy.savez"
    with refusing_damage(expected), beside.open("rb") as file, opened_archive(file) as archive:
        mean, variance = (np.ravel(archive[name]).astype(np.float64) for name in ("mean", "var"))
        return {"mean": mean, "variance": variance, "count": max(1, int(archive["count"]))}


def require_same_network(state: State, agent: Agent) -> None:
    """Check settings of an agent that a policy of :func:`read_sb3` needs, apart from its shapes."""
    if not isinstance(agent.normalizer, ObservationNormalizer):
        return  # the convolutional networks have one activation function
    if state["activation"] != agent.config.activation:
        raise StateMismatchError(
            f"The policy uses {state['activation']}, but this agent uses {agent.config.activation}; pass "
            f"--agent.activation {state['activation']}."
        )
    if state["normalizer"]["count"] == 0 and agent.config.normalize_observations:
        raise StateMismatchError(
            "There are no observation statistics beside the policy. If it was trained with VecNormalize, "
            "save them under its name: numpy.savez('NAME.npz', **vars(env.obs_rms)). If not, pass "
            "--agent.normalize_observations false."
        )


_CRITICS = {"critic": "critic", "critic_target": "target"}  # SAC's, theirs to ours
_LAST_OF_CNN = 7  # index of the linear layer in agents.pixels.NatureCNN
_VALUE_TRUNK = "vf_features_extractor."


def to_theirs(ours: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Convert a policy's parameters to a state dict of Stable-Baselines3's policy.

    Args:
        ours: state dict of a policy in :mod:`agents` with built-in networks.
        names: names of the parameters of Stable-Baselines3's policy.
    """
    if "target.weights.0" in ours:
        return dict(_sac_to_theirs(ours))
    is_shared = not any(name.startswith("critic.0.layers.") for name in ours)
    return {name: ours[_our_name(name, names, is_shared=is_shared)] for name in names}


def to_ours(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a state dict of Stable-Baselines3's policy to the parameters of a policy in :mod:`agents`.

    Raises:
        KeyError: a parameter is missing, or is not one of an actor-critic or SAC policy with built-in
            networks; the argument is its name.
    """
    if "actor.mu.weight" in theirs:
        return _sac_to_ours(theirs)
    is_shared = all(
        torch.equal(tensor, theirs[name.replace(_VALUE_TRUNK, "features_extractor.")])
        for name, tensor in theirs.items()
        if name.startswith(_VALUE_TRUNK)
    )
    return {_our_name(name, theirs, is_shared=is_shared): tensor for name, tensor in theirs.items()}


def _our_name(name: str, names: Collection[str], *, is_shared: bool) -> str:
    """Return our name of a parameter of an actor-critic policy.

    Args:
        is_shared: True if actor and critic share the convolutional layers, if there are any.
    """
    module, _, parameter = name.rpartition(".")
    is_cnn = any(".cnn." in each for each in names)
    match module.split("."):
        case [""] if name == "log_std":
            return "head.log_std"
        case ["mlp_extractor", "policy_net", index] if not is_cnn:
            return f"actor.{index}.{parameter}"
        case ["mlp_extractor", "value_net", index] if not is_cnn:
            return f"critic.{index}.{parameter}"
        case ["action_net"]:
            return f"actor.{1 if is_cnn else _end(names, 'policy_net')}.{parameter}"
        case ["value_net"]:
            of_cnn = 0 if is_shared else 1
            return f"critic.{of_cnn if is_cnn else _end(names, 'value_net')}.{parameter}"
        case [_, "cnn" | "linear" as part, index]:
            owner = "critic" if name.startswith(_VALUE_TRUNK) and not is_shared else "actor"
            return f"{owner}.0.layers.{index if part == 'cnn' else _LAST_OF_CNN}.{parameter}"
    raise KeyError(name)


def _end(names: Collection[str], network: str) -> int:
    """Return the index of the output layer that follows a network's hidden layers and activations."""
    return 2 * sum(bool(re.fullmatch(rf"mlp_extractor\.{network}\.\d+\.weight", name)) for name in names)


def _sac_to_theirs(ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    last = max(int(name.split(".")[1]) for name in ours if name.startswith("actor."))
    for kind in ("weight", "bias"):
        for index in range(0, last, 2):
            yield f"actor.latent_pi.{index}.{kind}", ours[f"actor.{index}.{kind}"]
        means, log_stds = ours[f"actor.{last}.{kind}"].chunk(2)
        yield f"actor.mu.{kind}", means
        yield f"actor.log_std.{kind}", log_stds
    for theirs, mine in _CRITICS.items():
        for layer in range(last // 2 + 1):
            weight, bias = ours[f"{mine}.weights.{layer}"], ours[f"{mine}.biases.{layer}"]
            weight = weight.transpose(0, 1) if layer == 0 else weight
            for which in range(2):  # see agents.squashed_gaussian.TwinCritic for the layout
                matrix = weight[which] if layer == last // 2 else weight[which].T
                yield f"{theirs}.qf{which}.{2 * layer}.weight", matrix
                yield f"{theirs}.qf{which}.{2 * layer}.bias", bias[which].flatten()


def _sac_to_ours(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    hidden = sum(bool(re.fullmatch(r"actor\.latent_pi\.\d+\.weight", name)) for name in theirs)
    ours: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        for layer in range(hidden):
            ours[f"actor.{2 * layer}.{kind}"] = theirs[f"actor.latent_pi.{2 * layer}.{kind}"]
        ours[f"actor.{2 * hidden}.{kind}"] = torch.cat(
            [theirs[f"actor.mu.{kind}"], theirs[f"actor.log_std.{kind}"]]
        )
    for name, mine in _CRITICS.items():
        for layer in range(hidden + 1):
            both = [f"{name}.qf{which}.{2 * layer}" for which in range(2)]
            weights = [theirs[f"{each}.weight"] for each in both]
            if layer == 0:
                weight = torch.stack([weight.T for weight in weights], 1)
            else:
                weight = torch.stack([weight if layer == hidden else weight.T for weight in weights])
            ours[f"{mine}.weights.{layer}"] = weight
            biases = torch.stack([theirs[f"{each}.bias"] for each in both])
            ours[f"{mine}.biases.{layer}"] = biases.unsqueeze(1)
    if unknown := theirs.keys() - dict(_sac_to_theirs(ours)):
        raise KeyError(min(unknown))
    return ours
