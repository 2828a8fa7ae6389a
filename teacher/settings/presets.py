"""Presets: named sets of option values; and the configuration that command-line options make."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from teacher.errors import ConfigError
from teacher.settings.config import TeachConfig, from_fields
from teacher.settings.unused import without_unused

Preset = Literal["default", "paper", "paper_atari", "bpref"]

# Christiano et al. 2017, sections 2.2 and A.1 (MuJoCo). The paper does not give the initial strength of the
# adaptive l2, the learning rate, or the length of a fit: with 200 labels on ShortHopper, a strength of 0.01
# reaches a loss ratio in the target range (1.2), while 1e-4 (3.3) and 1e-3 (1.9) do not adapt that far.
_PAPER: Mapping[str, Any] = {
    "agent": "trpo",
    "ent_coef": 0.01,
    "reward.members": 3,
    "reward.hidden": 64,
    "reward.inputs": None,  # states and actions; for images states only
    "reward.features": "plain",
    "reward.label_noise": 0.1,
    "reward.learning_rate": 1e-3,
    "reward.patience": 200,
    "reward.regularization": "l2",
    "reward.strength": 0.02,
    "reward.adapt": True,
    "reward.stride": 1,
    "reward.reward_std": 1.0,
    "schedule": "paper_mujoco",
    "queries.selection": "active",
    "queries.uncertainty": "probability",
    "queries.candidates": 10,
    "queries.recency": math.inf,
}

# PEBBLE in B-Pref (Lee et al. 2021, appendix B, and its code, for walker_walk). There, reward models have a
# third hidden layer and a tanh output, a fit ends at 97% training accuracy, a tenth of the labels is due at
# once every 20,000 steps, and the logarithms of the actor's standard deviations are between -5 and 2.
_BPREF: Mapping[str, Any] = {
    "agent": "sac",
    "agent.hidden_sizes": (1024, 1024),
    "agent.batch_size": 1024,
    "agent.learning_rate": 5e-4,
    "agent.ent_coef": "auto_0.1",
    "agent.target_update_interval": 2,
    "pretrain_steps": 10_000,  # of which the first 1,000 with random actions
    "reward.members": 3,
    "reward.hidden": 256,
    "reward.inputs": "state,action",
    "reward.features": "plain",
    "reward.label_noise": 0.0,
    "reward.learning_rate": 3e-4,
    "reward.strength": 0.0,
    "reward.stride": 1,
    "reward.batch_size": 128,
    "reward.converge": True,
    "reward.patience": 50,
    "reward.refit_after": 0.1,
    "reward.reward_std": 0.5,  # of values from -1 to 1
    "segment_steps": 50,
    "schedule": "constant",
    "queries.recency": 700,  # segments; a mean age of 50 episodes, as in the newest 100 episodes
}

PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    "default": {},
    "paper": _PAPER,
    # Section A.2, with PPO instead of A2C. In the paper the predictor trains continuously, on one label per
    # ten steps; here it trains for one epoch whenever 2% more labels have arrived.
    "paper_atari": {
        **_PAPER,
        "agent": "ppo",
        "reward.reward_std": 0.05,
        "reward.image_dropout": 0.5,
        "reward.no_image_batch_norm": False,
        "reward.max_preferences": 3000,
        "reward.epochs": 1,
        "segment_steps": 25,
        "schedule": "paper_atari",
    },
    "bpref": _BPREF,
}
"""Values that each preset sets, keyed by option."""


def with_preset(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` with ``preset`` replaced by the option values of that preset.

    Explicit options override the preset. Preset values that would have no effect are omitted.
    """
    name = options.get("preset", "default")
    if name not in PRESETS:
        raise ConfigError(f"--preset: expected {' or '.join(get_args(Preset))}; got {name!r}")
    explicit = {option: value for option, value in options.items() if option != "preset"}
    preset = without_unused(PRESETS[name], str(options.get("predictor")))
    if explicit.get("reward.model") == "linear":
        preset = without_unused(preset, "linear model", "reward.")
    if "segment_seconds" in explicit:
        preset.pop("segment_steps", None)
    if "ent_coef" in explicit:
        preset.pop("agent.ent_coef", None)
    if {"policy", "demonstrations"} & explicit.keys():
        preset.pop("pretrain_steps", None)
    if explicit.get("agent", preset.get("agent")) != preset.get("agent"):
        preset = {
            option: value
            for option, value in preset.items()
            if not option.startswith(("agent.", "pretrain_steps"))
        }
    return {**preset, **explicit}


def from_options(options: Mapping[str, Any]) -> TeachConfig:
    """Make a configuration from command-line options, such as ``{"seed": 3, "reward.members": 5}``.

    The option ``preset`` is allowed; other options override its values.

    Raises:
        ConfigError: a value is invalid.
    """
    given: dict[str, Any] = {}
    for option, value in with_preset(options).items():
        part, dot, name = option.partition(".")
        part = "agent_settings" if dot and part == "agent" else part
        if dot:
            given.setdefault(part, {})[name] = value
        else:
            given[option] = value
    return from_fields(given)
