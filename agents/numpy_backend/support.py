"""Check of which policies the NumPy backend can train."""

from torch import nn

from agents.policy import CategoricalHead, GaussianHead, MLPActorCritic


def supports(policy: nn.Module) -> bool:
    """Return True if the backend can train ``policy``: tanh layers on the CPU with one distribution."""
    return (
        isinstance(policy, MLPActorCritic)
        and policy.activation == "tanh"
        and isinstance(policy.head, GaussianHead | CategoricalHead)
        and all(parameter.device.type == "cpu" for parameter in policy.parameters())
    )
