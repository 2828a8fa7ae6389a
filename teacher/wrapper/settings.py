"""The settings of the wrapper: the arguments that are known from DRLHP, and what came since."""

import difflib
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from teacher.errors import ConfigError
from teacher.labeling.people import SiteOptions
from teacher.queries.judges import Judge
from teacher.queries.schedules import LabelSchedule
from teacher.settings.checks import COUNT, SEED, Check, Fits, check_fields, refuse_all, reject_unused
from teacher.settings.options import QueryConfig, RewardConfig

People = Literal["site", "terminal", "notebook"]
InitialReward = Literal["zero", "true"]

OTHER_NAMES = {"synthetic_preferences": "synthetic_prefs"}
"""What settings are called elsewhere."""

_IDLE_REWARD: Mapping[str, str] = {
    "initial_epochs": "n_initial_training_steps says how long the first training is",
    "converge": "a training step is one pass through all answers; reward.epochs says how many",
}
_IDLE_QUERIES: Mapping[str, str] = dict.fromkeys(
    ("exploration_frac", "switch_prob", "random_prob"), "no steps are made here but those of the agent"
)

DROPPED: Mapping[str, str] = {
    "mp_context": "asking and training run in a thread, which shares the environment's process",
    "reward_database_refresh_interval": "every fit takes in all answers that have come before it",
}
"""Arguments of DRLHP's wrapper that mean nothing here, and why."""


@dataclass(frozen=True, kw_only=True)
class WrapperConfig:
    """Everything that decides how the wrapper asks and learns; raises :class:`ConfigError` where values do
    not fit.

    A training step is one pass through all answers.
    """

    train_reward: Annotated[bool, "train a reward predictor on the answers"] = True
    collect_prefs: Annotated[bool, "ask about what the agent does"] = True
    segment_length: Annotated[
        int | None,
        "steps of a segment, all of one episode; without it 1.5 seconds, or half an episode where random "
        "ones are shorter",
        COUNT,
    ] = None
    prefs_dir: Annotated[
        str | Path | None, "begin with the preferences that save_prefs() wrote into this folder"
    ] = None
    log_dir: Annotated[
        str | Path,
        "folder of the answers, checkpoints and TensorBoard logs; what was answered there before counts on",
    ] = "drlhp_logs"
    max_prefs_in_db: Annotated[int, "preferences to learn from, those given last", COUNT] = 10_000
    obs_transform_func: Annotated[
        Callable[[Any], Any] | None,
        "makes of an observation the vector or image that segments hold and the predictor reads; the agent "
        "sees the observation",
    ] = None
    n_initial_training_steps: Annotated[
        int, "training steps before rewards are predicted for the first time", COUNT
    ] = 50
    n_initial_prefs: Annotated[int, "answers before training begins", COUNT] = 40
    pretrained_reward_predictor_dir: Annotated[
        str | Path | None,
        "begin with the newest predictor of this folder of checkpoints; its settings count, and reward is "
        "left out or the same",
    ] = None
    reward_predictor_ckpt_interval: Annotated[
        int, "training steps from one saved predictor to the next; the last five are kept", COUNT
    ] = 10
    reward_predictor_refresh_interval: Annotated[
        int, "training steps after which the rewards are those of the predictor as it is then", COUNT
    ] = 20
    validation_interval: Annotated[
        int, "training steps made at once, after which the predictor is tried on answers held out", COUNT
    ] = 10
    synthetic_prefs: Annotated[
        bool, "whether answers come from a function of the true reward instead of from people"
    ] = True
    max_pref_interface_segs: Annotated[
        int, "newest segments that questions are drawn from", Fits("2 or more", lambda count: count >= 2)
    ] = 50
    zoom_ratio: Annotated[int, "enlarges clips that are made of image observations", COUNT] = 4
    channels: Annotated[
        int,
        "last channels of an image observation that are shown, where it is a stack of frames: 1 or 3",
        Fits("1 or 3", lambda count: count in (1, 3)),
    ] = 3
    env_wrapper_log_level: Annotated[int, "of the logger teacher.wrapper"] = logging.INFO
    reward_predictor_log_level: Annotated[int, "of the logger teacher.wrapper.predictor"] = logging.INFO
    pref_interface_log_level: Annotated[int, "of the logger teacher.wrapper.preferences"] = logging.INFO

    env_fn: Annotated[
        Callable[[], Any] | None,
        "makes the environment anew, so that clips are made by replaying episodes; make it with "
        "render_mode='rgb_array'",
    ] = None
    background: Annotated[
        bool, "whether asking and training run beside step; False: inside it, so that a run can be repeated"
    ] = True
    initial_reward: Annotated[
        InitialReward, "what step returns until there is a predictor: zero, or the true reward"
    ] = "zero"
    n_prefs: Annotated[
        int | None,
        "answers wanted in all; without it one every 3 s (synthetic: 4 a second), without end",
        COUNT,
    ] = None
    total_timesteps: Annotated[
        int | None, "environment steps over which n_prefs are spread, ever more rarely", COUNT
    ] = None
    allow_variable_horizon: Annotated[
        bool, "accept an environment that ends episodes early, although their length leaks the reward"
    ] = False
    schedule: Annotated[LabelSchedule | None, "instead of both: when how many answers are due"] = None
    judge: Annotated[
        Judge | str,
        "who answers where synthetic_prefs: a function of two segments, or as teach --teacher",
    ] = "oracle"
    people: Annotated[People, "where people answer where not synthetic_prefs"] = "site"
    site: Annotated[SiteOptions, "which site, and what people are asked there"] = field(
        default_factory=SiteOptions
    )
    reward: Annotated[RewardConfig, "the reward predictor"] = field(default_factory=RewardConfig)
    queries: Annotated[QueryConfig, "the choice of pairs to ask about"] = field(default_factory=QueryConfig)
    own_agent: Annotated[
        bool,
        "train a predictor in a daemonic process, too, as of a multiprocessing.Pool: it has its own agent",
    ] = False
    seed: Annotated[int, "of everything random", SEED] = 1
    device: Annotated[str, "torch device of the predictor"] = "cpu"

    def __post_init__(self) -> None:
        check_fields(self, prefix="")
        refuse_all(self, self._checks(), prefix="")
        reject_unused(self.reward, _IDLE_REWARD, "reward.")
        reject_unused(self.queries, _IDLE_QUERIES, "queries.")

    def _checks(self) -> list[Check]:
        return [
            (
                "n_prefs",
                (self.n_prefs is None) == (self.total_timesteps is None),
                "belongs together with total_timesteps",
            ),
            (
                "n_prefs",
                self.n_prefs is None or self.n_prefs >= self.n_initial_prefs,
                f"expected n_initial_prefs ({self.n_initial_prefs}) or more",
            ),
            (
                "max_prefs_in_db",
                not self.train_reward or self.max_prefs_in_db >= self.n_initial_prefs,
                f"expected n_initial_prefs ({self.n_initial_prefs}) or more, or training never begins",
            ),
            (
                "background",
                self.background or not self.collect_prefs or self.counts_steps,
                "what is done inside step is asked by steps: pass n_prefs and total_timesteps, or a schedule",
            ),
            (
                "background",
                self.background or self.synthetic_prefs or not self.collect_prefs,
                "step does not wait for people",
            ),
            (
                "train_reward",
                not self.train_reward or self.collect_prefs or self.prefs_dir is not None,
                "needs answers: collect_prefs, or those in a prefs_dir",
            ),
            (
                "schedule",
                self.schedule is None or self.n_prefs is None,
                "expected it or n_prefs and total_timesteps, not both",
            ),
            (
                "judge",
                self.judge == "oracle" or self.synthetic_prefs,
                "people answer where not synthetic_prefs; leave it out",
            ),
            (
                "people",
                self.people == "site" or not self.synthetic_prefs,
                "a function answers where synthetic_prefs; pass synthetic_prefs=False",
            ),
            (
                "site",
                self.site == SiteOptions() or (self.people == "site" and not self.synthetic_prefs),
                'people are asked there only with synthetic_prefs=False and people="site"',
            ),
        ]

    @property
    def segment_steps(self) -> int:
        """The length of segments, once it is known. Raises ValueError before that."""
        if self.segment_length is None:
            raise ValueError("expected settings that were fitted to an environment")
        return self.segment_length

    @property
    def counts_steps(self) -> bool:
        """Whether answers are due by steps rather than by the clock."""
        return self.n_prefs is not None or self.schedule is not None

    @property
    def predicts(self) -> bool:
        """Whether rewards will be predicted sooner or later."""
        return self.train_reward or self.pretrained_reward_predictor_dir is not None

    @property
    def logs(self) -> Path:
        """The folder ``log_dir``."""
        return Path(self.log_dir)


def read_settings(settings: Mapping[str, Any]) -> WrapperConfig:
    """The settings that keyword arguments give, by their own names or those of DRLHP's README.

    Those that mean nothing here are warned of.

    Raises:
        ConfigError: an argument is unknown or given twice, or a value does not fit.
    """
    given: dict[str, Any] = {}
    known = [one.name for one in fields(WrapperConfig)]
    for argument, value in settings.items():
        name = OTHER_NAMES.get(argument, argument)
        if name in DROPPED:
            warnings.warn(f"{name} does nothing here: {DROPPED[name]}; leave it out", stacklevel=3)
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see docs/wrapper.md for those there are"
            raise ConfigError(f"the wrapper has no argument {argument}; {hint}")
        elif name in given:
            raise ConfigError(f"expected one of {argument} and {name}, got both")
        else:
            given[name] = value
    return WrapperConfig(**given)
