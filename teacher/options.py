"""The settings of a run's parts, each a frozen dataclass that ``teach`` offers as ``--part.option``.

Each field is annotated with its help text. A value that does not fit raises :class:`ConfigError`, which names
the option. What several options set together is a preset.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal, get_args

from teacher.errors import ConfigError

Check = tuple[str, bool, str]
"""The name of a field, whether its value fits, and what was expected."""

Regularisation = Literal["weight_decay", "l1", "l2"]
NormalisedBy = Literal["preferences", "running", "none"]

INPUTS = ("state", "action", "next_state", "terminated")
"""What a reward predictor may read of a step."""


def refuse_first(settings: object, checks: Sequence[Check], part: str = "") -> None:
    """Raise :class:`ConfigError` for the first check that does not hold, naming the option of ``part``."""
    for name, holds, expectation in checks:
        if not holds:
            raise ConfigError(f"--{part}{name}: {expectation}; got {attrgetter(name)(settings)!r}")


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """How the predictor is built and fitted."""

    inputs: Annotated[
        str | None,
        f"what it reads of each step: one or more of {','.join(INPUTS)}, joined by commas (state,action "
        "without it, and state where that is an image)",
    ] = None
    members: Annotated[int, "networks in the ensemble"] = 3
    hidden: Annotated[int, "units in each of a network's two hidden layers"] = 64
    dropout: Annotated[float, "probability that a hidden unit is silent for a step while fitting"] = 0.0
    shaping: Annotated[
        float | None,
        "add the gain in a potential of states, learned along and discounted by this; --reward.inputs needs "
        "state, next_state and terminated",
    ] = None
    flat_start: Annotated[bool, "begin with the same reward everywhere instead of a random one"] = False
    label_noise: Annotated[float, "share of labels assumed to be given at random"] = 0.1
    discount: Annotated[float, "of each further step in the return of a segment that a label is about"] = 1.0
    learning_rate: Annotated[float, "of AdamW"] = 1e-3
    regularisation: Annotated[
        Regularisation,
        "AdamW's weight decay, or a penalty on absolute values (l1) or squares (l2) of parameters",
    ] = "weight_decay"
    # Strong: a few hundred answers are fitted perfectly anyway. On ShortHopper with 300 answers, two seeds,
    # the correlation with the true reward of a step rose from 0.89 (with 0.01) to 0.93.
    strength: Annotated[float, "of the regularisation"] = 2.0
    adapt: Annotated[
        bool,
        "keep each member's held-out loss at 1.1 to 1.5 times its training loss by changing that strength",
    ] = False
    label_smoothing: Annotated[float, "make no pair surer than 1 minus this"] = 0.0
    shortest_crop: Annotated[
        float,
        "fit to random parts of both segments of a pair, of at least this share; 1 = to whole segments",
    ] = 1.0
    batch_size: Annotated[int, "pairs in a minibatch, at most"] = 32
    accumulate: Annotated[int, "parts of a minibatch that are looked at one after the other"] = 1
    epochs: Annotated[int, "times to go through all labels in each fit after the first"] = 10
    # Each fit goes through all labels, so that one for every label would take longer than the rest of a run.
    refit_after: Annotated[float, "new labels after which it is fitted again, as a share of all"] = 0.02
    initial_epochs: Annotated[int | None, "the same in the first fit, instead of to convergence"] = None
    converge: Annotated[bool, "go on to convergence in the other fits, too"] = False
    patience: Annotated[
        int, "updates without a better held-out loss after which fitting to convergence ends"
    ] = 200
    # Small, so that returns are of the order of 1 and a value function that starts at 0 finds them within a
    # few rollouts.
    reward_std: Annotated[float, "standard deviation that predicted rewards are scaled to"] = 0.05
    normalisation: Annotated[
        NormalisedBy,
        "steps over which rewards have mean 0 and a known deviation: those of the preferences, or those they "
        "were used for (running); none = whatever members say",
    ] = "preferences"
    uncertainty_bonus: Annotated[
        float, "standard deviations of the members that the reward is above their mean"
    ] = 0.0
    image_dropout: Annotated[float, "share of each convolution's outputs dropped in training on images"] = 0.5
    no_image_batch_norm: Annotated[bool, "normalise no minibatches after the convolutions on images"] = False
    max_preferences: Annotated[int | None, "fit to this many labels at most, those given last"] = None

    def __post_init__(self) -> None:
        read = INPUTS[:1] if self.inputs is None else self.inputs.split(",")
        checks: list[Check] = [
            (
                "inputs",
                set(read) <= set(INPUTS) and len(set(read)) == len(read),
                f"expected one or more of {','.join(INPUTS)}, each once, joined by commas",
            ),
            ("members", self.members >= 1, "expected 1 or more"),
            ("hidden", self.hidden >= 1, "expected 1 or more"),
            ("dropout", 0 <= self.dropout < 1, "expected 0 or more and less than 1"),
            ("image_dropout", 0 <= self.image_dropout < 1, "expected 0 or more and less than 1"),
            ("shaping", self.shaping is None or 0 < self.shaping <= 1, "expected more than 0 and at most 1"),
            (
                "inputs",
                self.shaping is None or {"state", "next_state", "terminated"} <= set(read),
                "--reward.shaping needs state, next_state and terminated among them",
            ),
            ("label_noise", 0 <= self.label_noise < 1, "expected 0 or more and less than 1"),
            ("discount", 0 < self.discount <= 1, "expected more than 0 and at most 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "expected more than 0"),
            (
                "regularisation",
                self.regularisation in get_args(Regularisation),
                f"expected {', '.join(get_args(Regularisation))}",
            ),
            ("strength", 0 <= self.strength < math.inf, "expected 0 or more"),
            (
                "strength",
                self.regularisation != "weight_decay" or self.strength * self.learning_rate < 1,
                f"expected less than 1 / --reward.learning_rate ({self.learning_rate})",
            ),
            (
                "strength",
                self.strength > 0 or not self.adapt,
                "expected more than 0 for --reward.adapt to change",
            ),
            ("label_smoothing", 0 <= self.label_smoothing < 0.5, "expected 0 or more and less than 0.5"),
            ("shortest_crop", 0 < self.shortest_crop <= 1, "expected more than 0 and at most 1"),
            ("accumulate", self.accumulate >= 1, "expected 1 or more"),
            ("batch_size", self.batch_size >= 1, "expected 1 or more"),
            ("epochs", self.epochs >= 1, "expected 1 or more"),
            ("refit_after", 0 <= self.refit_after < math.inf, "expected 0 or more"),
            (
                "initial_epochs",
                self.initial_epochs is None or self.initial_epochs >= 1,
                "expected 1 or more",
            ),
            ("patience", self.patience >= 1, "expected 1 or more"),
            ("reward_std", 0 < self.reward_std < math.inf, "expected more than 0"),
            (
                "normalisation",
                self.normalisation in get_args(NormalisedBy),
                f"expected {', '.join(get_args(NormalisedBy))}",
            ),
            ("uncertainty_bonus", math.isfinite(self.uncertainty_bonus), "expected a number"),
            (
                "uncertainty_bonus",
                self.uncertainty_bonus == 0 or self.members >= 2,
                "expected 0 where there is one member",
            ),
            (
                "max_preferences",
                self.max_preferences is None or self.max_preferences >= 1,
                "expected 1 or more",
            ),
        ]
        refuse_first(self, checks, "reward.")


Selection = Literal["random", "active"]
Uncertainty = Literal["probability", "logit", "label"]


@dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """How the pairs to ask about are chosen."""

    selection: Annotated[
        Selection, "random, or active = the pairs on which the predictor's members disagree most"
    ] = "active"
    uncertainty: Annotated[
        Uncertainty, "what active compares members by: the predicted probability, its logit or the label"
    ] = "probability"
    candidates: Annotated[int, "random pairs that each pair asked about is chosen from"] = 10
    diversity: Annotated[
        int, "so many times as many of the best candidates as are wanted, then those least alike; 1 = off"
    ] = 1
    recency: Annotated[
        float, "newer segments after which one is drawn half as often; inf = all are drawn alike"
    ] = 150.0
    oversampling: Annotated[
        float | None,
        "draw from the newest segments only, so many times as many as are wanted; without it from 2000",
    ] = None
    exploration_frac: Annotated[
        float, "share of the segments that come from extra steps, some of them at random"
    ] = 0.0
    switch_prob: Annotated[
        float, "at such an extra step, probability of choosing anew who acts: the agent or chance"
    ] = 0.5
    random_prob: Annotated[float, "probability that chance is chosen then"] = 0.5

    def __post_init__(self) -> None:
        in_unit = "expected 0 to 1"
        checks: list[Check] = [
            ("selection", self.selection in get_args(Selection), "expected random or active"),
            (
                "uncertainty",
                self.uncertainty in get_args(Uncertainty),
                "expected probability, logit or label",
            ),
            ("candidates", self.candidates >= 1, "expected 1 or more"),
            ("diversity", self.diversity >= 1, "expected 1 or more"),
            (
                "diversity",
                self.diversity <= self.candidates,
                f"expected no more than --queries.candidates ({self.candidates})",
            ),
            ("recency", self.recency > 0, "expected more than 0"),
            (
                "oversampling",
                self.oversampling is None or 1 <= self.oversampling < math.inf,
                "expected 1 or more",
            ),
            ("exploration_frac", 0 <= self.exploration_frac <= 1, in_unit),
            ("switch_prob", 0 <= self.switch_prob <= 1, in_unit),
            ("random_prob", 0 <= self.random_prob <= 1, in_unit),
        ]
        refuse_first(self, checks, "queries.")


Preset = Literal["default", "paper"]

PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    "default": {},
    # Christiano et al. 2017, sections 2.2 and A.1 (MuJoCo). With which strength the adapted l2 begins, and
    # how long a fit goes on, is not said there: with 200 labels on ShortHopper, from 0.01 the losses come to
    # a wanted ratio (1.2), but from 1e-4 (3.3) or 1e-3 (1.9) the strength does not get so far.
    "paper": {
        "agent": "trpo",
        "reward.members": 3,
        "reward.hidden": 64,
        "reward.label_noise": 0.1,
        "reward.regularisation": "l2",
        "reward.strength": 0.01,
        "reward.adapt": True,
        "reward.reward_std": 1.0,
        "segment_seconds": 1.5,
        "schedule": "paper_mujoco",
        "queries.selection": "active",
        "queries.uncertainty": "probability",
        "queries.candidates": 10,
        "queries.recency": math.inf,
    },
}
"""What each preset sets, by the name of the option."""


def with_preset(options: Mapping[str, Any]) -> dict[str, Any]:
    """Put what the preset among ``options`` sets where they are silent, and leave out its name."""
    name = options.get("preset", "default")
    if name not in PRESETS:
        raise ConfigError(f"--preset: expected {' or '.join(get_args(Preset))}; got {name!r}")
    return {**PRESETS[name], **{option: value for option, value in options.items() if option != "preset"}}
