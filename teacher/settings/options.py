"""Settings of the reward predictor (``--reward.*``) and of query selection (``--queries.*``).

Each field of the frozen dataclasses is annotated with its help text and constraints. An invalid value raises
:class:`ConfigError` with the option's name.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from teacher.errors import ConfigError
from teacher.settings.checks import (
    COUNT,
    MILLION,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_OF_LESS,
    SHARE_OF_MORE,
    Fits,
    Problem,
    at_most,
    check_fields,
    refuse,
)
from teacher.settings.unused import changed, query_modes, reject_unused

REWARD_STD = 0.05
"""Default standard deviation of predicted rewards.

Small, so that returns are of order 1 and a value function that starts at 0 learns them in a few rollouts.
"""
REWARD_STD_SAC = 1.0
"""Default standard deviation of predicted rewards with SAC.

Its entropy bonus outweighs smaller rewards until the entropy coefficient has fallen.
"""
Regularization = Literal["weight_decay", "l1", "l2"]
NormalizedBy = Literal["preferences", "running", "none"]
NumberFeatures = Literal["auto", "plain", "even"]
Model = Literal["auto", "network", "linear"]

MAX_UPDATES = 10_000
"""Default maximum number of updates in a fit; early stopping usually ends the fit sooner."""
INPUTS = ("state", "action", "next_state", "absorbing", "terminated")
"""Parts of a step that a reward model can use as inputs."""
_NETWORKS, _LINEAR_MODELS = 3, 10  # default ensemble sizes; linear models take milliseconds to fit
_MOST_WEIGHTS = 200_000_000
"""Maximum number of weights between hidden layers, summed over all members.

A fit needs 16 bytes of memory per weight, so at most 3 GiB.
"""


@dataclass(frozen=True, kw_only=True)
class RunStage:
    """Targets of a run before it was extended.

    Attributes:
        n_labels: total labels; None if labels were requested at a fixed rate per second.
        step: environment step at which the run was extended.
    """

    num_timesteps: int
    n_labels: int | None
    step: int


def _reads(inputs: str) -> bool:
    read = inputs.split(",")
    return set(read) <= set(INPUTS) and len(set(read)) == len(read)


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Settings of the reward predictor: reward models, fitting, and normalization."""

    inputs: Annotated[
        str | None,
        f"inputs of a reward model at each step: one or more of {','.join(INPUTS)}, joined by commas; "
        "absorbing = whether the observation stayed the same, added by --fixed_horizon absorb; for images "
        "state, next_state or both",
        Fits(f"one or more of {','.join(INPUTS)}, separated by commas, none twice", _reads),
    ] = "next_state"  # None, from runs and files of earlier versions, means state,action, or state for images
    model: Annotated[
        Model,
        "reward model: linear in the inputs, their squares and logarithms; network; or auto = linear until "
        "networks predict held-out labels clearly better, but network if a setting of networks is changed",
    ] = "auto"
    members: Annotated[
        int | None,
        "ensemble size (default: 3 networks, as in the 2017 paper, or 10 linear models)",
        COUNT,
        at_most("1000"),
    ] = None
    hidden: Annotated[
        int,
        "units in each of the two hidden layers",
        COUNT,
        at_most("4096"),
    ] = 64
    features: Annotated[
        NumberFeatures,
        "input features of networks: plain = the values themselves, even = also their squares and "
        "logarithms, so that fewer labels are needed to learn distances; auto = chosen by the first fit, "
        "where even needs 40 or more labels and a clearly lower held-out loss",
    ] = "auto"
    dropout: Annotated[float, "dropout probability while fitting (rl-teacher)", SHARE_OF_LESS] = 0.0
    label_noise: Annotated[
        float, "assumed probability that a label is random (2017 paper: 0.1)", SHARE_OF_LESS
    ] = 0.1
    discount: Annotated[float, "discount factor within a segment (imitation)", SHARE_OF_MORE] = 1.0
    learning_rate: Annotated[
        float | None,
        "AdamW learning rate (default: 3e-3, 1e-3 for images)",
        POSITIVE,
        at_most("1e30"),
    ] = None
    regularization: Annotated[
        Regularization,
        "weight_decay = AdamW's, l1 or l2 = a penalty in the loss (imitation)",
    ] = "weight_decay"
    strength: Annotated[
        float | None,
        "regularization strength at 100 labels; scales with 1/sqrt(labels) (default: 3 for weight decay, "
        "10 with features=even, 0.003 for l1, 0.02 for l2)",
        NOT_NEGATIVE,
    ] = None
    adapt: Annotated[
        bool,
        "adapt the strength to keep each member's held-out loss at 1.1 to 1.5 times its training loss "
        "(2017 paper)",
    ] = False
    label_smoothing: Annotated[
        float,
        "label smoothing (Szegedy et al. 2016)",
        Fits("0 or more and less than 0.5", lambda value: 0 <= value < 0.5),
    ] = 0.0
    shortest_crop: Annotated[
        float,
        "temporal cropping: fit to random crops of at least this share of both segments (SURF); 1 = off",
        SHARE_OF_MORE,
    ] = 1.0
    stride: Annotated[
        int,
        "fit to every N-th step of both segments, from a random offset; 1 = every step",
        COUNT,
    ] = 3
    batch_size: Annotated[int, "comparisons per minibatch", COUNT] = 32
    accumulate: Annotated[
        int, "gradient accumulation: split each minibatch into N parts (imitation)", COUNT
    ] = 1
    epochs: Annotated[int, "epochs of each fit after the first", COUNT, MILLION] = 10
    # A fit uses all labels, so refitting at every new label would take longer than the rest of a run.
    refit_after: Annotated[float, "refit once this share of the labels is new", NOT_NEGATIVE] = 0.02
    initial_epochs: Annotated[
        int | None, "epochs of the first fit (imitation; default: until convergence)", COUNT, MILLION
    ] = None
    converge: Annotated[
        bool, "in every fit, continue until the held-out loss stops improving (B-Pref: 97% training accuracy)"
    ] = False
    patience: Annotated[int, "early stopping: maximum updates without a lower held-out loss", COUNT] = 300
    reward_std: Annotated[
        float | None,
        "standard deviation that predicted rewards are scaled to (default: 0.05, or 1 in teach -a sac)",
        Fits("more than 0 and at most 1e6", lambda value: 0 < value <= 1e6),
    ] = None
    normalization: Annotated[
        NormalizedBy,
        "normalize predicted rewards over the segments of the dataset (preferences), over the steps they "
        "were used for (running, imitation), or not at all (none)",
    ] = "preferences"
    uncertainty_bonus: Annotated[
        float,
        "add N standard deviations of the ensemble to its mean (imitation)",
        Fits("-1e6 to 1e6", lambda value: -1e6 <= value <= 1e6),
    ] = 0.0
    image_dropout: Annotated[float, "dropout after each convolution (2017 paper: 0.5)", SHARE_OF_LESS] = 0.5
    no_image_batch_norm: Annotated[bool, "no batch normalization after convolutions (drlhp's default)"] = (
        False
    )
    max_preferences: Annotated[
        int | None, "keep only this many of the newest labels (2017 paper, Atari: 3000)", COUNT
    ] = None

    def __post_init__(self) -> None:
        check_fields(self, "--reward.")
        refuse(self, self._problems(), "--reward.")
        if self.model == "linear":
            reject_unused(self, "linear model", "--reward.")

    def _problems(self) -> Iterator[Problem]:
        most_units = math.isqrt(_MOST_WEIGHTS // self.num_members)
        if self.hidden > most_units:
            yield "hidden", f"expected {most_units} or less with --reward.members {self.num_members}"
        if self.strength == 0 and self.adapt:
            yield "strength", "expected more than 0 with --reward.adapt, which scales it"
        if self.uncertainty_bonus != 0 and self.num_members < 2:
            yield "uncertainty_bonus", "expected 0 with only one ensemble member"

    @property
    def num_members(self) -> int:
        """Number of ensemble members; if ``members`` is None, the number of networks."""
        return _NETWORKS if self.members is None else self.members

    def with_members(self, members: int | None, *, linear: bool) -> "RewardConfig":
        """Return the settings with the number of ensemble members filled in; a number in them is kept.

        Args:
            members: the number; None for the default number of linear models or networks.
            linear: True for linear models, False for networks.
        """
        by_default = _LINEAR_MODELS if linear else _NETWORKS
        return replace(self, members=self.members or members or by_default)

    @property
    def may_be_linear(self) -> bool:
        """Return True if the settings allow linear reward models."""
        return self.model == "linear" or (self.model == "auto" and not changed(self, "linear model"))


OLD_NAMES: Mapping[str, str] = {"regularisation": "regularization", "normalisation": "normalization"}
"""Old names of predictor settings that saved files may contain, mapped to current names."""


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the predictor settings of a file in their current names, without those of 0.1.0 alone."""
    if settings.get("shaping") is not None:
        raise ConfigError("--reward.shaping was removed; use version 0.1.0 for this predictor")
    removed = ("shaping", "flat_start")  # the latter had an effect before the first fit alone
    return {OLD_NAMES.get(name, name): value for name, value in settings.items() if name not in removed}


REWARD_BEFORE: Mapping[str, Any] = {"inputs": None, "features": "plain", "model": "network"}
"""Values of predictor settings that files from earlier versions of RL-Teacher lack."""

Selection = Literal["random", "active"]


class Asked(NamedTuple):
    """Description of a kind of question: the number of segments, and what is asked."""

    size: int
    words: str


ASKED: Mapping[str, Asked] = {
    "pair": Asked(2, "which of two clips is better"),
    "graded": Asked(2, "slightly or clearly better"),
    "rating": Asked(1, "one clip, from 1 to 5"),
    "best_worst": Asked(4, "the best and the worst of four clips"),
}
"""Kinds of questions, in the order of a study; their classes are in ``queries/kinds``."""
if TYPE_CHECKING:
    KindName: TypeAlias = str
    FeedbackName: TypeAlias = str
else:
    KindName, FeedbackName = Literal[tuple(ASKED)], Literal[(*ASKED, "study")]
"""Questions of a run: of one kind or, to compare them, of all."""
Uncertainty = Literal["probability", "logit", "label"]


@dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """Settings of query selection."""

    selection: Annotated[Selection, "random, or active = highest ensemble disagreement (2017 paper)"] = (
        "active"
    )
    uncertainty: Annotated[
        Uncertainty, "prediction whose variance active maximizes: probability, logit or label (imitation)"
    ] = "probability"
    candidates: Annotated[
        int,
        "random groups of segments to select each question from (2017 paper: 10)",
        COUNT,
        at_most("10000"),
    ] = 10
    diversity: Annotated[
        int,
        "k-center batch selection: pre-select N x batch, keep the most diverse (B-Pref); 1 = off",
        COUNT,
    ] = 1
    recency: Annotated[
        float,
        "sampling weight of a segment halves after this many newer ones; inf = uniform",
        Fits("more than 0", lambda value: value > 0),
    ] = 150.0
    oversampling: Annotated[
        float | None,
        "sample from the newest segments, N times as many as needed (imitation; default: 2000 segments)",
        Fits("1 or more", lambda value: 1 <= value < math.inf),
    ] = None
    exploration_frac: Annotated[
        float, "share of segments from extra exploration steps (imitation)", SHARE
    ] = 0.0
    switch_prob: Annotated[
        float,
        "probability per exploration step of switching between agent and random policy (imitation)",
        SHARE,
    ] = 0.5
    random_prob: Annotated[float, "probability of the random policy at each switch (imitation)", SHARE] = 0.5

    def __post_init__(self) -> None:
        check_fields(self, "--queries.")
        no_more = f"expected no more than --queries.candidates ({self.candidates})"
        refuse(self, [("diversity", no_more)] if self.diversity > self.candidates else [], "--queries.")
        for mode in query_modes(self.selection, self.exploration_frac):
            reject_unused(self, mode, "--queries.")
