"""Names and layouts of networks' parameters in Stable-Baselines3, and their equivalents in :mod:`agents`."""

import re
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

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
        name: the parameter's name in Stable-Baselines3.
        names: names of all parameters there.
        is_shared: True if actor and critic share the convolutional layers, if there are any.

    Raises:
        KeyError: the parameter has no equivalent.
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
