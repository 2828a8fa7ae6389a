"""Table of settings that have no effect in some modes; setting them in these modes is an error."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from teacher.settings.checks import Problem, refuse

_SITE = (
    "prompt",
    "lowest_rating",
    "highest_rating",
    "gold",
    "pace",
    "site_url",
    "storage",
    "state_dir",
    "bind",
    "public_url",
)
_LABELS = (
    "n_labels",
    "pretrain_labels",
    "schedule",
    "teacher",
    "feedback",
    "hard_labels",
    "segment_seconds",
    "segment_steps",
    "network",
    "pretrain_iters",
    "pretrain_steps",
    "value_refit",
    "allow_variable_horizon",
)
_NETWORK = ("hidden", "dropout")
_IMAGE_NETWORK = ("image_dropout", "no_image_batch_norm")
_TRAINING = (
    "features",
    "learning_rate",
    "regularization",
    "strength",
    "adapt",
    "shortest_crop",
    "stride",
    "batch_size",
    "accumulate",
    "epochs",
    "initial_epochs",
    "converge",
    "patience",
)
_SYNTHETIC = "with synthetic_prefs=True, because a scripted teacher labels"

UNUSED: Mapping[str, Mapping[str, str]] = {
    # TeachConfig
    "rl": dict.fromkeys((*_LABELS, *_SITE, "reward", "queries"), "with -p rl"),
    "synth": dict.fromkeys(_SITE, "with -p synth"),
    "human": {},
    # WrapperConfig
    "synthetic_prefs=True": {"people": _SYNTHETIC, "site": _SYNTHETIC},
    "synthetic_prefs=False": {"judge": "with synthetic_prefs=False, because people label"},
    "no site": {"site": 'unless people="site"'},
    # RewardConfig
    "converge": {"epochs": "with --reward.converge"},
    "single fit": {
        "epochs": "in a single fit, whose length initial_epochs sets",
        "converge": "in a single fit, which runs until convergence anyway",
        "refit_after": "in a single fit",
    },
    "wrapper": {
        "initial_epochs": "in the wrapper, where n_initial_training_steps sets the length of the first fit",
        "converge": "in the wrapper, which trains for a fixed number of epochs (reward.epochs)",
    },
    "vector observations": dict.fromkeys(_IMAGE_NETWORK, "when observations are not images"),
    "image observations": dict.fromkeys(_NETWORK, "when observations are images"),
    "linear model": dict.fromkeys((*_NETWORK, *_IMAGE_NETWORK, *_TRAINING), "with --reward.model=linear"),
    "custom network": dict.fromkeys((*_NETWORK, *_IMAGE_NETWORK), "with a custom network"),
    # QueryConfig
    "random selection": {"uncertainty": "with random selection"},
    "no exploration": dict.fromkeys(("switch_prob", "random_prob"), "without exploration_frac"),
    "wrapper queries": dict.fromkeys(
        ("exploration_frac", "switch_prob", "random_prob"),
        "in the wrapper, which takes no exploration steps",
    ),
}
"""For each mode, the settings that have no effect, mapped to the end of their error message."""


def query_modes(selection: object, exploration_frac: object) -> list[str]:
    """Return the keys of :data:`UNUSED` that apply to these settings of query selection."""
    modes = {"random selection": selection == "random", "no exploration": not exploration_frac}
    return [mode for mode, applies in modes.items() if applies]


def reject_unused(settings: object, mode: str, prefix: str = "--") -> None:
    """Raise :class:`ConfigError` if a setting was changed from its default but is unused in ``mode``.

    Args:
        mode: key of :data:`UNUSED`.
        prefix: text before each setting's name in the message, such as ``--reward.``.
    """
    refuse(settings, _changed(settings, mode), prefix)


def changed(settings: object, mode: str) -> bool:
    """Return True if any setting that is unused in ``mode`` was changed from its default."""
    return any(True for _ in _changed(settings, mode))


def _changed(settings: object, mode: str) -> Iterator[Problem]:
    """Yield a problem per changed setting, or per changed field if the setting is a nested dataclass."""
    for name, reason in UNUSED[mode].items():
        value, default = getattr(settings, name), _default(settings, name)
        expectation = f"has no effect {reason}; leave it out"
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                if getattr(value, field.name) != getattr(default, field.name):
                    yield f"{name}.{field.name}", expectation
        elif value != default:
            yield name, expectation


def _default(settings: Any, name: str) -> Any:
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def without_unused(options: Mapping[str, Any], mode: str, prefix: str = "") -> dict[str, Any]:
    """Return ``options`` without the options that have no effect in ``mode``.

    Args:
        options: values by option, such as ``reward.hidden``.
        mode: key of :data:`UNUSED`; another mode leaves out nothing.
        prefix: text before the names of that mode's settings in ``options``, such as ``reward.``.
    """
    unused = tuple(f"{prefix}{name}." for name in UNUSED.get(mode, {}))
    return {name: value for name, value in options.items() if not f"{name}.".startswith(unused)}
