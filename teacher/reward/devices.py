"""Selection of the torch device, and the devices available on this machine."""

import torch

from teacher.errors import ConfigError, one_line


def working_device(device: str, name: str = "device") -> torch.device:
    """Return the torch device of this name after checking that it works.

    Args:
        device: such as ``cpu``, ``cuda`` or ``cuda:1``.
        name: the argument's name, used in error messages.

    Raises:
        ConfigError: torch does not know the device, or this machine does not have it.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _refusal(device, name, "torch does not know this device") from error
    try:
        torch.zeros(1, device=found).item()  # fails for "meta"
    except Exception as error:  # a driver may raise anything
        raise _refusal(device, name, one_line(error).partition(". ")[0]) from error
    return found


def devices_here() -> list[str]:
    """Return the names of the devices that work on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def _refusal(device: object, name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{name}: expected a device available on this machine ({', '.join(devices_here())}), got "
        f"{one_line(repr(device))}: {reason}; choose one of these, or install a torch build that supports it"
    )
