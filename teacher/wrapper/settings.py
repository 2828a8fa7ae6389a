"""Settings of the wrapper: DRLHP's arguments and newer ones."""

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
from teacher.settings.checks import COUNT, SEED, Check, Fits, check_fields, refuse_all
from teacher.settings.options import QueryConfig, RewardConfig
from teacher.settings.unused import reject_unused

People = Literal["site", "terminal", "notebook"]
InitialReward = Literal["zero", "true"]

OTHER_NAMES = {"synthetic_preferences": "synthetic_prefs"}
"""Settings by the names that DRLHP's README uses."""

DROPPED: Mapping[str, str] = {
    "mp_context": "asking and training run in a thread of the environment's process",
    "reward_database_refresh_interval": "every fit uses all labels received before it",
}
"""Arguments of DRLHP's wrapper that have no effect here, with the reason."""


@dataclass(frozen=True, kw_only=True)
class WrapperConfig:
    """Settings of the wrapper; raises :class:`ConfigError` for invalid values.

    A training step is one epoch over all labels.
    """

    train_reward: Annotated[bool, "train a reward predictor on the labels"] = True
    collect_prefs: Annotated[bool, "submit comparisons of the agent's segments"] = True
    segment_length: Annotated[
        int | None,
        "steps of a segment, within one episode (default: 1.5 seconds, or half an episode if random episodes "
        "are shorter)",
        COUNT,
    ] = None
    prefs_dir: Annotated[
        str | Path | None, "start with the preferences that save_prefs() wrote into this folder"
    ] = None
    log_dir: Annotated[
        str | Path,
        "folder of labels, checkpoints, and TensorBoard logs; labels already in it are used",
    ] = "drlhp_logs"
    max_prefs_in_db: Annotated[int, "maximum preferences to learn from, the newest ones", COUNT] = 10_000
    obs_transform_func: Annotated[
        Callable[[Any], Any] | None,
        "turns an observation into a vector or image for segments and predictor; the agent sees the "
        "untransformed observation",
    ] = None
    n_initial_training_steps: Annotated[
        int, "training steps before step returns predicted rewards", COUNT
    ] = 50
    n_initial_prefs: Annotated[int, "labels before training starts", COUNT] = 40
    pretrained_reward_predictor_dir: Annotated[
        str | Path | None,
        "start with the newest predictor in this folder of checkpoints and its settings; leave out reward or "
        "pass the same",
    ] = None
    reward_predictor_ckpt_interval: Annotated[
        int, "training steps between predictor checkpoints; the last five are kept", COUNT
    ] = 10
    reward_predictor_refresh_interval: Annotated[
        int, "training steps between updates of the predictor that step uses", COUNT
    ] = 20
    validation_interval: Annotated[int, "training steps between evaluations on held-out labels", COUNT] = 10
    synthetic_prefs: Annotated[
        bool, "labels from a scripted teacher on the true reward instead of from people"
    ] = True
    max_pref_interface_segs: Annotated[
        int, "newest segments to sample comparisons from", Fits("2 or more", lambda count: count >= 2)
    ] = 50
    zoom_ratio: Annotated[int, "enlargement of clips of image observations", COUNT] = 4
    channels: Annotated[
        int,
        "channels of an image observation to show, the last ones of a frame stack: 1 or 3",
        Fits("1 or 3", lambda count: count in (1, 3)),
    ] = 3
    env_wrapper_log_level: Annotated[int, "level of logger teacher.wrapper"] = logging.INFO
    reward_predictor_log_level: Annotated[int, "level of logger teacher.wrapper.predictor"] = logging.INFO
    pref_interface_log_level: Annotated[int, "level of logger teacher.wrapper.preferences"] = logging.INFO

    env_fn: Annotated[
        Callable[[], Any] | None,
        "makes a copy of the environment with render_mode='rgb_array', to render clips by replaying episodes",
    ] = None
    background: Annotated[
        bool, "ask and train in a background thread; False: inside step, for reproducible runs"
    ] = True
    initial_reward: Annotated[
        InitialReward, "reward that step returns until there is a predictor: zero, or the true reward"
    ] = "zero"
    n_prefs: Annotated[
        int | None,
        "total labels (default: no limit, one every 3 s, or 4 per second from a scripted teacher)",
        COUNT,
    ] = None
    total_timesteps: Annotated[
        int | None, "environment steps over which to spread n_prefs, with a decreasing rate", COUNT
    ] = None
    allow_variable_horizon: Annotated[
        bool, "accept episodes that end early, although their length leaks the reward"
    ] = False
    schedule: Annotated[
        LabelSchedule | None, "custom label schedule, instead of n_prefs and total_timesteps"
    ] = None
    judge: Annotated[
        Judge | str,
        "scripted teacher with synthetic_prefs: a function of two segments, or a teacher of teach --teacher",
    ] = "oracle"
    people: Annotated[People, "where people label without synthetic_prefs"] = "site"
    site: Annotated[SiteOptions, "the labeling site and the prompt"] = field(default_factory=SiteOptions)
    reward: Annotated[RewardConfig, "reward predictor"] = field(default_factory=RewardConfig)
    queries: Annotated[QueryConfig, "query selection"] = field(default_factory=QueryConfig)
    own_agent: Annotated[
        bool,
        "allow training in a daemonic process, as of a multiprocessing.Pool, that trains its own agent",
    ] = False
    seed: Annotated[int, "random seed", SEED] = 1
    device: Annotated[str, "torch device of the predictor"] = "cpu"

    def __post_init__(self) -> None:
        check_fields(self, prefix="")
        reject_unused(self, f"synthetic_prefs={self.synthetic_prefs}", prefix="")
        if self.people != "site":
            reject_unused(self, "no site", prefix="")
        refuse_all(self, self._checks(), prefix="")
        reject_unused(self.reward, "wrapper", "reward.")
        reject_unused(self.queries, "wrapper queries", "queries.")

    def _checks(self) -> list[Check]:
        return [
            (
                "n_prefs",
                (self.n_prefs is None) == (self.total_timesteps is None),
                "expected together with total_timesteps",
            ),
            (
                "n_prefs",
                self.n_prefs is None or self.n_prefs >= self.n_initial_prefs,
                f"expected n_initial_prefs ({self.n_initial_prefs}) or more",
            ),
            (
                "max_prefs_in_db",
                not self.train_reward or self.max_prefs_in_db >= self.n_initial_prefs,
                f"expected n_initial_prefs ({self.n_initial_prefs}) or more, or training never starts",
            ),
            (
                "background",
                self.background or not self.collect_prefs or self.counts_steps,
                "asking inside step needs a schedule by steps: pass n_prefs and total_timesteps, or schedule",
            ),
            (
                "background",
                self.background or self.synthetic_prefs or not self.collect_prefs,
                "step cannot wait for people; leave it out",
            ),
            (
                "train_reward",
                not self.train_reward or self.collect_prefs or self.prefs_dir is not None,
                "needs labels: pass collect_prefs=True or a prefs_dir",
            ),
            (
                "schedule",
                self.schedule is None or self.n_prefs is None,
                "expected either schedule or n_prefs and total_timesteps",
            ),
        ]

    @property
    def segment_steps(self) -> int:
        """Segment length. Raises ValueError before it is fitted to the environment."""
        if self.segment_length is None:
            raise ValueError("expected settings that were fitted to an environment")
        return self.segment_length

    @property
    def counts_steps(self) -> bool:
        """True if labels are due by environment steps rather than by time."""
        return self.n_prefs is not None or self.schedule is not None

    @property
    def predicts(self) -> bool:
        """True if there is or will be a reward predictor."""
        return self.train_reward or self.pretrained_reward_predictor_dir is not None

    @property
    def logs(self) -> Path:
        """Folder ``log_dir`` as a path."""
        return Path(self.log_dir)


def read_settings(settings: Mapping[str, Any]) -> WrapperConfig:
    """Return the settings of keyword arguments, by their own names or those of DRLHP's README.

    Warns about arguments that have no effect here.

    Raises:
        ConfigError: an argument is unknown or given twice, or a value is invalid.
    """
    given: dict[str, Any] = {}
    known = [one.name for one in fields(WrapperConfig)]
    for argument, value in settings.items():
        name = OTHER_NAMES.get(argument, argument)
        if name in DROPPED:
            warnings.warn(f"{name} has no effect here: {DROPPED[name]}; leave it out", stacklevel=3)
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see docs/wrapper.md for its arguments"
            raise ConfigError(f"the wrapper has no argument {argument}; {hint}")
        elif name in given:
            raise ConfigError(f"expected one of {argument} and {name}, got both")
        else:
            given[name] = value
    return WrapperConfig(**given)
