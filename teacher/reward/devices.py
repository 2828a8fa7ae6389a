"""Functions that check a torch device and list the devices of this machine."""

import torch

from teacher.errors import ConfigError, one_line, short_repr


def working_device(device: str, name: str = "device") -> torch.device:
    """Return the torch device with this name, after testing that a tensor can be created on it.

    Args:
        device: device name, such as ``cpu``, ``cuda`` or ``cuda:1``.
        name: option or argument that the device comes from, for the error message.

    Raises:
        ConfigError: the name is not a valid torch device, or the device doesn't work on this machine.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _refusal(device, name, "not a valid torch device") from error
    try:
        torch.zeros(1, device=found).item()  # the "meta" device fails only here
    except Exception as error:  # drivers raise many types of errors
        raise _refusal(device, name, one_line(error).partition(". ")[0]) from error
    return found


def devices_here() -> list[str]:
    """Return the names of this machine's torch devices, such as ``cpu`` and ``cuda:0``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def _refusal(device: object, name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{name}: can't use {short_repr(device)}: {reason}; use a device available on this machine "
        f"({', '.join(devices_here())}), or install a torch build that supports your device"
    )
