"""The settings of a run's parts, each a frozen dataclass that ``teach`` offers as ``--part.option``.

Each field is annotated with its help text and, where not every value will do, with what fits. A value that
does not raises :class:`ConfigError`, which names the option. What several options set together is a preset.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from teacher.errors import ConfigError
from teacher.settings.checks import (
    COUNT,
    MILLION,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_OF_LESS,
    SHARE_OF_MORE,
    Check,
    Fits,
    at_most,
    check_fields,
    refuse_all,
)

Regularization = Literal["weight_decay", "l1", "l2"]
NormalizedBy = Literal["preferences", "running", "none"]
NumberFeatures = Literal["auto", "plain", "even"]

MAX_UPDATES = 10_000
"""Of a predictor in one fit, unless another number is given; it ends before where nothing is gained."""
INPUTS = ("state", "action", "next_state", "terminated")
"""What a reward predictor may read of a step."""
_MOST_WEIGHTS = 200_000_000
"""Between the hidden layers of all members; fitting takes four numbers for each, 3 GiB in all."""


@dataclass(frozen=True, kw_only=True)
class RunStage:
    """What a run was to come to before it was extended.

    Attributes:
        num_timesteps: environment steps in all.
        n_labels: labels in all, None where they were asked by time.
        step: environment steps made when the run was extended.
    """

    num_timesteps: int
    n_labels: int | None
    step: int


def _reads(inputs: str) -> bool:
    read = inputs.split(",")
    return set(read) <= set(INPUTS) and len(set(read)) == len(read)


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """How the predictor is built and fitted."""

    inputs: Annotated[
        str | None,
        f"what it reads of each step: one or more of {','.join(INPUTS)}, joined by commas; of images state, "
        "next_state or both",
        Fits(f"one or more of {','.join(INPUTS)}, each once, joined by commas", _reads),
    ] = "next_state"  # None, as in runs and files from before: state,action, or of images state
    members: Annotated[int, "networks in the ensemble", COUNT, at_most("1000")] = 3
    hidden: Annotated[
        int,
        "units in each of a network's two hidden layers",
        COUNT,
        at_most("4096"),
    ] = 64
    features: Annotated[
        NumberFeatures,
        "what it reads of each number: itself (plain), or its square and logarithm as well (even), with "
        "which rewards that are distances take fewer labels; auto = a first fit to 40 labels or more tries "
        "both, and is plain unless even orders held-out labels clearly better",
    ] = "auto"
    dropout: Annotated[
        float, "probability that a hidden unit is silent for a step while fitting", SHARE_OF_LESS
    ] = 0.0
    shaping: Annotated[
        float | None,
        "add the gain in a potential of states, learned along and discounted by this; --reward.inputs needs "
        "state, next_state and terminated",
        SHARE_OF_MORE,
    ] = None
    flat_start: Annotated[bool, "begin with the same reward everywhere instead of a random one"] = False
    label_noise: Annotated[float, "share of labels assumed to be given at random", SHARE_OF_LESS] = 0.1
    discount: Annotated[
        float, "of each further step in the return of a segment that a label is about", SHARE_OF_MORE
    ] = 1.0
    learning_rate: Annotated[
        float | None,
        "of AdamW (3e-3 without it, and 1e-3 where it reads images)",
        POSITIVE,
        at_most("1e30"),
    ] = None
    regularization: Annotated[
        Regularization,
        "AdamW's weight decay, or a penalty on absolute values (l1) or squares (l2) of parameters",
    ] = "weight_decay"
    strength: Annotated[
        float | None,
        "of the regularization with 100 labels; with four times as many it is half (without it 3 for weight "
        "decay, and 10 where squares and logarithms are read; 0.003 for l1, 0.02 for l2)",
        NOT_NEGATIVE,
    ] = None
    adapt: Annotated[
        bool,
        "keep each member's held-out loss at 1.1 to 1.5 times its training loss by changing that strength",
    ] = False
    label_smoothing: Annotated[
        float,
        "make no pair surer than 1 minus this",
        Fits("0 or more and less than 0.5", lambda value: 0 <= value < 0.5),
    ] = 0.0
    shortest_crop: Annotated[
        float,
        "fit to random parts of both segments of a pair, of at least this share; 1 = to whole segments",
        SHARE_OF_MORE,
    ] = 1.0
    stride: Annotated[
        int,
        "fit to every so many-th step of both segments of a pair only, from a random one on, but to a "
        "quarter of a short one's at least; 1 = to all",
        COUNT,
    ] = 3
    batch_size: Annotated[int, "pairs in a minibatch, at most", COUNT] = 32
    accumulate: Annotated[int, "parts of a minibatch that are looked at one after the other", COUNT] = 1
    epochs: Annotated[int, "times to go through all labels in each fit after the first", COUNT, MILLION] = 10
    # Each fit goes through all labels, so that one for every label would take longer than the rest of a run.
    refit_after: Annotated[
        float, "new labels after which it is fitted again, as a share of all", NOT_NEGATIVE
    ] = 0.02
    initial_epochs: Annotated[
        int | None, "the same in the first fit, instead of to convergence", COUNT, MILLION
    ] = None
    converge: Annotated[bool, "go on to convergence in the other fits, too"] = False
    patience: Annotated[
        int, "updates without a better held-out loss after which fitting to convergence ends", COUNT
    ] = 300
    # Small, so that returns are of the order of 1 and a value function that starts at 0 finds them within a
    # few rollouts.
    reward_std: Annotated[
        float,
        "standard deviation that predicted rewards are scaled to",
        Fits("more than 0 and at most 1e6", lambda value: 0 < value <= 1e6),
    ] = 0.05
    normalization: Annotated[
        NormalizedBy,
        "steps over which rewards have mean 0 and a known deviation: those of the preferences, or those they "
        "were used for (running); none = whatever members say",
    ] = "preferences"
    uncertainty_bonus: Annotated[
        float,
        "standard deviations of the members that the reward is above their mean",
        Fits("-1e6 to 1e6", lambda value: -1e6 <= value <= 1e6),
    ] = 0.0
    image_dropout: Annotated[
        float, "share of each convolution's outputs dropped in training on images", SHARE_OF_LESS
    ] = 0.5
    no_image_batch_norm: Annotated[bool, "normalize no minibatches after the convolutions on images"] = False
    max_preferences: Annotated[int | None, "fit to this many labels at most, those given last", COUNT] = None

    def __post_init__(self) -> None:
        check_fields(self, "--reward.")
        most_units = math.isqrt(_MOST_WEIGHTS // self.members)
        read = set((self.inputs or "state,action").split(","))
        checks: list[Check] = [
            (
                "hidden",
                self.hidden <= most_units,
                f"expected {most_units} or less with --reward.members {self.members}",
            ),
            (
                "inputs",
                self.shaping is None or {"state", "next_state", "terminated"} <= read,
                "--reward.shaping needs state, next_state and terminated among them",
            ),
            (
                "strength",
                self.strength is None or self.strength > 0 or not self.adapt,
                "expected more than 0 for --reward.adapt to change",
            ),
            (
                "uncertainty_bonus",
                self.uncertainty_bonus == 0 or self.members >= 2,
                "expected 0 where there is one member",
            ),
        ]
        refuse_all(self, checks, "--reward.")


OLD_NAMES: Mapping[str, str] = {"regularisation": "regularization", "normalisation": "normalization"}
"""What settings of the predictor are called in files of earlier versions."""


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved settings of the predictor under their present names."""
    return {OLD_NAMES.get(name, name): value for name, value in settings.items()}


REWARD_BEFORE: Mapping[str, Any] = {"inputs": None, "features": "plain"}
"""What files from before these settings leave out, and meant."""

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
    candidates: Annotated[
        int,
        "random pairs that each pair asked about is chosen from",
        COUNT,
        at_most("10000"),
    ] = 10
    diversity: Annotated[
        int,
        "so many times as many of the best candidates as are wanted, then those least alike; 1 = off",
        COUNT,
    ] = 1
    recency: Annotated[
        float,
        "newer segments after which one is drawn half as often; inf = all are drawn alike",
        Fits("more than 0", lambda value: value > 0),
    ] = 150.0
    oversampling: Annotated[
        float | None,
        "draw from the newest segments only, so many times as many as are wanted; without it from 2000",
        Fits("1 or more", lambda value: 1 <= value < math.inf),
    ] = None
    exploration_frac: Annotated[
        float, "share of the segments that come from extra steps, some of them at random", SHARE
    ] = 0.0
    switch_prob: Annotated[
        float, "at such an extra step, probability of choosing anew who acts: the agent or chance", SHARE
    ] = 0.5
    random_prob: Annotated[float, "probability that chance is chosen then", SHARE] = 0.5

    def __post_init__(self) -> None:
        check_fields(self, "--queries.")
        no_more = f"expected no more than --queries.candidates ({self.candidates})"
        refuse_all(self, [("diversity", self.diversity <= self.candidates, no_more)], "--queries.")


Preset = Literal["default", "paper", "paper_atari"]

# Christiano et al. 2017, sections 2.2 and A.1 (MuJoCo). With which strength the adapted l2 begins, how fast a
# fit learns and how long it goes on are not said there: with 200 labels on ShortHopper, from 0.01 the losses
# come to a wanted ratio (1.2), but from 1e-4 (3.3) or 1e-3 (1.9) the strength does not get so far.
_PAPER: Mapping[str, Any] = {
    "agent": "trpo",
    "ent_coef": 0.01,
    "reward.members": 3,
    "reward.hidden": 64,
    "reward.inputs": None,  # states and actions, or of images states
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

PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    "default": {},
    "paper": _PAPER,
    # Section A.2, with PPO for its A2C. There the predictor goes through its labels all the time, one for
    # every ten steps; here it goes through all of them once whenever there are 2 % more.
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
}
"""What each preset sets, by the name of the option."""


def with_preset(options: Mapping[str, Any]) -> dict[str, Any]:
    """Put what the preset among ``options`` sets where they are silent, and leave out its name."""
    name = options.get("preset", "default")
    if name not in PRESETS:
        raise ConfigError(f"--preset: expected {' or '.join(get_args(Preset))}; got {name!r}")
    return {**PRESETS[name], **{option: value for option, value in options.items() if option != "preset"}}
