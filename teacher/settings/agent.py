"""Conversion of an agent's configuration, such as ``PPOConfig(...)``, to settings that can be saved."""

from typing import Any, ClassVar, Protocol

from teacher.errors import ConfigError, short_repr


class AgentConfiguration(Protocol):
    """Configuration dataclass of an RL algorithm, such as :class:`agents.PPOConfig`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def settings_of_agent(config: AgentConfiguration) -> tuple[str, dict[str, Any]]:
    """Return the name of the RL algorithm, and its hyperparameters keyed by name.

    Raises:
        ConfigError: the custom network is not an importable function, so it can't be saved by name.
    """
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__}
    network = settings.get("network")
    if callable(network):
        name = f"{network.__module__}:{getattr(network, '__qualname__', '')}"
        if "<" in name or network.__module__ == "__main__":
            raise ConfigError(
                f"--agent.network: {short_repr(network)} can't be saved by name; use a function at "
                "the top level of an importable module"
            )
        settings["network"] = name
    return type(config).__name__.removesuffix("Config").lower(), settings
