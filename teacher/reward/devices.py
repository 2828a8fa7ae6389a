"""Which torch device is computed on, and what there is on this machine."""

import torch

from teacher.errors import ConfigError, one_line


def working_device(device: str, name: str = "device") -> torch.device:
    """The torch device of that name.

    Args:
        device: such as ``cpu``, ``cuda`` or ``cuda:1``.
        name: of the argument, with which a refusal begins.

    Raises:
        ConfigError: torch does not know it, or this machine does not have it.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _refusal(device, name, "torch knows none of that name") from error
    try:
        torch.zeros(1, device=found).item()  # which "meta" cannot tell
    except Exception as error:  # a driver may raise anything
        raise _refusal(device, name, one_line(error).partition(". ")[0]) from error
    return found


def devices_here() -> list[str]:
    """The devices that work on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def _refusal(device: object, name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{name}: expected a device of this machine ({', '.join(devices_here())}), got "
        f"{one_line(repr(device))}: {reason}; choose one of these, or install a torch for another"
    )
