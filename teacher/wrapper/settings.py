"""Settings of the wrappers that learn from preferences; some come from DRLHP's original wrapper."""

import difflib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from teacher.errors import ConfigError
from teacher.labeling.people import SiteOptions
from teacher.queries.judges import Judge
from teacher.queries.schedules import LabelSchedule
from teacher.settings.checks import COUNT, SEED, Fits, Problem, check_fields, refuse
from teacher.settings.options import KindName, QueryConfig, RewardConfig
from teacher.settings.unused import reject_unused

People = Literal["site", "terminal", "notebook"]
InitialReward = Literal["zero", "true"]

PREFERENCES_NAME = "preferences.npz"
OTHER_NAMES = {"synthetic_preferences": "synthetic_prefs"}
"""Setting names in DRLHP's README, mapped to field names of :class:`WrapperConfig`."""

DROPPED: Mapping[str, str] = {
    "mp_context": "the wrapper asks for labels and trains in a thread, not in other processes",
    "reward_database_refresh_interval": "every fit uses all labels received so far",
}
"""Arguments of DRLHP's wrapper that have no effect here, mapped to the reason."""


@dataclass(frozen=True, kw_only=True)
class WrapperConfig:
    """Settings of the wrappers that learn from preferences.

    In these settings, a training step is one epoch of predictor training over all labels.

    Raises:
        ConfigError: a value is invalid, has no effect, or conflicts with another setting.
    """

    train_reward: Annotated[bool, "train a reward predictor on the labels"] = True
    collect_prefs: Annotated[bool, "submit comparisons of the agent's segments for labeling"] = True
    segment_length: Annotated[
        int | None,
        "steps per segment (default: 1.5 seconds, or half the median length of random episodes if those are "
        "shorter)",
        COUNT,
    ] = None
    prefs_dir: Annotated[
        str | Path | None, "folder with preferences to start with, written by save_prefs()"
    ] = None
    log_dir: Annotated[
        str | Path,
        "folder for labels, checkpoints and TensorBoard logs; labels already in it are reused",
    ] = "drlhp_logs"
    max_prefs_in_db: Annotated[int, "maximum number of preferences; the oldest are dropped", COUNT] = 10_000
    obs_transform_func: Annotated[
        Callable[[Any], Any] | None,
        "converts an observation to a vector or image for segments and the predictor; the agent still sees "
        "the original",
    ] = None
    n_initial_training_steps: Annotated[
        int,
        "training steps (epochs over all labels; linear models need one) before step() returns predicted "
        "rewards",
        COUNT,
    ] = 50
    n_initial_prefs: Annotated[int, "labels needed before training starts", COUNT] = 40
    pretrained_reward_predictor_dir: Annotated[
        str | Path | None,
        "checkpoint folder; its newest predictor is used from the start, with its saved settings (leave out "
        "reward, or pass equal settings)",
    ] = None
    reward_predictor_ckpt_interval: Annotated[
        int, "training steps between predictor checkpoints; only the last five are kept", COUNT
    ] = 10
    reward_predictor_refresh_interval: Annotated[
        int, "training steps between updates of the predictor that step() uses", COUNT
    ] = 20
    validation_interval: Annotated[int, "training steps between evaluations on held-out labels", COUNT] = 10
    synthetic_prefs: Annotated[
        bool, "get labels from a scripted teacher, which uses the true reward, instead of from people"
    ] = True
    max_pref_interface_segs: Annotated[
        int,
        "number of newest segments to sample comparisons from",
        Fits("2 or more", lambda count: count >= 2),
    ] = 50
    zoom_ratio: Annotated[int, "scale factor of clips made from image observations", COUNT] = 4
    channels: Annotated[
        int,
        "number of an image observation's last channels to show: 1 or 3",
        Fits("1 or 3", lambda count: count in (1, 3)),
    ] = 3
    env_wrapper_log_level: Annotated[int, "log level of the logger teacher.wrapper"] = logging.INFO
    reward_predictor_log_level: Annotated[int, "log level of the logger teacher.wrapper.predictor"] = (
        logging.INFO
    )
    pref_interface_log_level: Annotated[int, "log level of the logger teacher.wrapper.preferences"] = (
        logging.INFO
    )

    env_fn: Annotated[
        Callable[[], Any] | None,
        "makes a second instance of the environment, with render_mode='rgb_array', to render clips by replay",
    ] = None
    background: Annotated[
        bool, "ask for labels and train in a thread; False: inside step(), for reproducible runs"
    ] = True
    initial_reward: Annotated[
        InitialReward, "what step() returns before there is a predictor: zero, or the true reward"
    ] = "zero"
    n_prefs: Annotated[
        int | None,
        "total labels (default: no limit, one every 3 s from people, 4 per second from a scripted teacher)",
        COUNT,
    ] = None
    total_timesteps: Annotated[
        int | None, "environment steps over which n_prefs is spread, at a decreasing rate", COUNT
    ] = None
    allow_variable_horizon: Annotated[
        bool, "accept episodes that end early, although their length leaks the reward"
    ] = False
    schedule: Annotated[
        LabelSchedule | None, "custom label schedule, instead of n_prefs and total_timesteps"
    ] = None
    judge: Annotated[
        Judge | str,
        "scripted teacher for synthetic_prefs: a function of two segments, or a value of teach --teacher",
    ] = "oracle"
    feedback: Annotated[KindName, "kind of question; see teach --feedback"] = "pair"
    people: Annotated[People, "where people label if synthetic_prefs is False"] = "site"
    site: Annotated[SiteOptions, "labeling site and prompt"] = field(default_factory=SiteOptions)
    reward: Annotated[RewardConfig, "settings of the reward predictor"] = field(default_factory=RewardConfig)
    queries: Annotated[QueryConfig, "settings of query selection"] = field(default_factory=QueryConfig)
    own_agent: Annotated[
        bool,
        "allow training in a daemonic process, such as a multiprocessing.Pool worker, with its own agent",
    ] = False
    seed: Annotated[int, "random seed", SEED] = 1
    device: Annotated[str, "PyTorch device of the predictor"] = "cpu"

    def __post_init__(self) -> None:
        check_fields(self, prefix="")
        reject_unused(self, f"synthetic_prefs={self.synthetic_prefs}", prefix="")
        if self.people != "site":
            reject_unused(self, "no site", prefix="")
        refuse(self, self._problems(), prefix="")
        refuse(self.site, self.site.word_problems(self.feedback), prefix="site.")
        reject_unused(self.reward, "wrapper", "reward.")
        reject_unused(self.queries, "wrapper queries", "queries.")

    def _problems(self) -> Iterator[Problem]:
        least = f"must be at least n_initial_prefs ({self.n_initial_prefs})"
        if (self.n_prefs is None) != (self.total_timesteps is None):
            yield "n_prefs", "must be passed together with total_timesteps, or not at all"
        if self.n_prefs is not None and self.n_prefs < self.n_initial_prefs:
            yield "n_prefs", least
        if self.train_reward and self.max_prefs_in_db < self.n_initial_prefs:
            yield "max_prefs_in_db", f"{least}, or training never starts"
        if self.collect_prefs and not self.background:
            if self.n_prefs is None and self.schedule is None:
                yield (
                    "background",
                    "without a thread, labels need a schedule: pass n_prefs and total_timesteps, or schedule",
                )
            if not self.synthetic_prefs:
                yield "background", "must be True if people label, because step() can't wait for them"
        if self.train_reward and not self.collect_prefs and self.prefs_dir is None:
            yield "train_reward", "training needs labels: pass collect_prefs=True or prefs_dir"
        is_scripted = self.collect_prefs and self.synthetic_prefs
        if self.feedback != "pair" and is_scripted and not isinstance(self.judge, str):
            yield "judge", f"functions compare two segments, and can't answer {self.feedback} questions"
        if self.schedule is not None and self.n_prefs is not None:
            yield "schedule", "can't be combined with n_prefs and total_timesteps; leave out one or the other"

    @property
    def segment_steps(self) -> int:
        """Segment length in steps.

        Raises:
            ValueError: ``segment_length`` is None, because ``fit_to_environment`` hasn't set it.
        """
        if self.segment_length is None:
            raise ValueError(
                "segment_length is not set; use the config of the watcher that fit_to_environment() returns"
            )
        return self.segment_length

    @property
    def predicts(self) -> bool:
        """True if there is or will be a reward predictor."""
        return self.train_reward or self.pretrained_reward_predictor_dir is not None

    @property
    def logs(self) -> Path:
        """``log_dir`` as a ``Path``: folder for labels, checkpoints and logs."""
        return Path(self.log_dir)

    @property
    def saved_preferences(self) -> Path | None:
        """File of the preferences to start with; None if ``prefs_dir`` is None."""
        if self.prefs_dir is None:
            return None
        path = Path(self.prefs_dir)
        return path / PREFERENCES_NAME if path.is_dir() else path


def read_settings(settings: Mapping[str, Any]) -> WrapperConfig:
    """Convert the wrapper's keyword arguments to settings; also accept argument names from DRLHP's README.

    Emits a warning for arguments of DRLHP's wrapper that have no effect here.

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
            hint = f"did you mean {close[0]}?" if close else "teacher/wrapper/settings.py lists all arguments"
            raise ConfigError(f"the wrapper has no argument {argument}; {hint}")
        elif name in given:
            raise ConfigError(f"{argument} and {name} are the same setting; pass only one of them")
        else:
            given[name] = value
    return WrapperConfig(**given)
