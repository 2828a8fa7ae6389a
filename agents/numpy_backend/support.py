"""Check whether the NumPy backend can train a policy."""

from torch import nn

from agents.heads import CategoricalHead, GaussianHead
from agents.policy import MLPActorCritic


def supports(policy: nn.Module) -> bool:
    """Return True if the NumPy backend can train ``policy``.

    The policy must be an :class:`agents.policy.MLPActorCritic` on the CPU, with tanh activations and Box or
    Discrete actions.
    """
    return (
        isinstance(policy, MLPActorCritic)
        and policy.activation == "tanh"
        and isinstance(policy.head, GaussianHead | CategoricalHead)
        and all(parameter.device.type == "cpu" for parameter in policy.parameters())
    )
