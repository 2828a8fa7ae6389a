"""Settings of a run: a frozen dataclass with documented and validated fields."""

import dataclasses
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from teacher.errors import ConfigError, short_repr
from teacher.settings.addresses import SiteSettings
from teacher.settings.checks import (
    BILLION,
    COUNT,
    MILLION,
    NOT_NEGATIVE,
    SEED,
    Fits,
    Problem,
    are_named_values,
    at_most,
    check_fields,
    named_values,
    refuse,
)
from teacher.settings.options import ASKED, FeedbackName, QueryConfig, RewardConfig, RunStage
from teacher.settings.teachers import ErrorModel
from teacher.settings.unused import reject_unused

Predictor = Literal["rl", "synth", "human"]
AgentName = Literal["ppo", "trpo", "sac"]
Pace = Literal["labels", "free"]
Filling = Literal["absorb", "restart"]
RateName = Literal["constant", "hyperbolic", "inverse_quadratic", "paper_mujoco", "paper_atari"]
ScheduleName = Literal["exponential", RateName]
TrackerName = Literal["wandb", "mlflow", "trackio"]
Track = Annotated[
    TrackerName | None, "experiment tracker to use besides TensorBoard: Weights & Biases, MLflow or Trackio"
]

DEFAULT_PRETRAIN_LABELS = 175
PARTS = {"reward": RewardConfig, "queries": QueryConfig}
NO_OPTIONS = {*PARTS, "stages", "agent_settings"}
"""Fields of :class:`TeachConfig` without a command-line option of the same name."""
PRIVATE = ("site_url", "storage", "state_dir", "bind", "public_url", "runs_dir")
"""Settings of the site and of this machine, such as URLs that may contain passwords."""
_OWN_ARGUMENTS = {"max_episode_steps", "obs_transform", "fixed_horizon", "render_mode", "disable_env_checker"}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MAX_EXPERIMENT_NAME = 100  # the site's limit


class AgentConfiguration(Protocol):
    """Configuration dataclass of an RL algorithm, such as :class:`agents.PPOConfig`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def settings_of_agent(config: AgentConfiguration) -> tuple[str, dict[str, Any]]:
    """Return the name of the RL algorithm, and its hyperparameters keyed by name."""
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


@dataclass(frozen=True, kw_only=True)
class TeachConfig(SiteSettings):
    """All settings of a run. Invalid values raise :class:`ConfigError`.

    Each field is annotated with its help text, and optionally with a short flag and constraints.
    """

    env_id: Annotated[
        str, "Gymnasium environment ID, or module:Env-v0", "-e", Fits("an environment ID", str.strip)
    ]
    predictor: Annotated[
        Predictor,
        "source of rewards: rl = the environment's, synth = learned from synthetic labels, human = "
        "learned from people's labels",
        "-p",
    ]
    name: Annotated[
        str,
        "name of this run: ASCII letters, digits, _ and -",
        "-n",
        Fits("ASCII letters, digits, _ and - only", _NAME.fullmatch),
    ]
    seed: Annotated[int, "random seed", "-s", SEED] = 1
    workers: Annotated[
        int, "threads that step environments; their number does not affect results", "-w", COUNT
    ] = 1
    n_labels: Annotated[
        int | None,
        "labels in total (default: one every 3 s of training)",
        "-l",
        Fits("4 or more", lambda count: count >= 4),
        BILLION,
    ] = None
    pretrain_labels: Annotated[
        int | None,
        f"labels before training (default: a quarter of n_labels, or {DEFAULT_PRETRAIN_LABELS} if not set)",
        "-L",
        COUNT,
        BILLION,
    ] = None
    schedule: Annotated[
        ScheduleName | None,
        "label schedule: exponential (default) as in rl-teacher; constant; hyperbolic or "
        "inverse_quadratic as in imitation; paper_mujoco, 2e6/(T+2e6) at step T, or paper_atari, "
        "5e6/(T+5e6), as in the 2017 paper",
    ] = None
    teacher: Annotated[
        str,
        "how synth labels: oracle, mistake:P, noisy:T, soft:T, skip:X, equal:X, myopic:G, discount:G "
        "(B-Pref, imitation) or module:function, joined by commas; with human, what scripted labelers "
        "prefer",
    ] = "oracle"
    feedback: Annotated[
        FeedbackName,
        f"kind of question: {'; '.join(f'{name} = {asked.words}' for name, asked in ASKED.items())}; study = "
        "all in turn, compared on the experiment's page",
    ] = "pair"
    num_timesteps: Annotated[int, "total environment steps, such as 5e6", "-t", COUNT] = 5_000_000
    agent: Annotated[
        AgentName | AgentConfiguration,
        "RL algorithm; in Python also its configuration, PPOConfig(...)",
        "-a",
    ] = "ppo"
    agent_settings: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters set with ``--agent.*``; all others use the defaults for the environment."""
    num_envs: Annotated[
        int | None, "parallel environments (default: depends on env_id)", COUNT, at_most("4096")
    ] = None
    ent_coef: Annotated[
        float | None,
        "entropy bonus coefficient; advantages are normalized (default: depends on env_id, usually 0)",
        NOT_NEGATIVE,
        at_most("1000"),
    ] = None
    value_refit: Annotated[
        int,
        "epochs of fitting the critic alone after each reward fit, before the agent's update",
        NOT_NEGATIVE,
        MILLION,
    ] = 0
    pretrain_steps: Annotated[
        int,
        "with sac: environment steps of state-entropy exploration before the first labels (PEBBLE: 10000); "
        "the first comparisons are from them",
        NOT_NEGATIVE,
        BILLION,
    ] = 0
    pretrain_iters: Annotated[
        int, "maximum updates of the first reward fit; linear models ignore it", "-i", COUNT
    ] = 10_000
    policy: Annotated[
        str | None,
        "initialize the policy from this run directory, checkpoint.npz, .safetensors file or "
        "Stable-Baselines3 .zip file",
    ] = None
    demonstrations: Annotated[
        str | None,
        "initialize the policy by behavior cloning of this .npz file (Stable Baselines); after --policy, "
        "if both are given",
    ] = None
    network: Annotated[
        str | None,
        "module:function that builds each reward model: takes the input shape, returns a torch module "
        "from (n, *shape) to (n,)",
    ] = None
    no_videos: Annotated[bool, "do not render videos of whole episodes", "-V"] = False
    track: Track = None
    segment_seconds: Annotated[
        float | None,
        "clip length in seconds (default: 1.5, or half of a median random episode if that is shorter)",
        Fits("more than 0 and at most 60", lambda seconds: 0 < seconds <= 60),
    ] = None
    segment_steps: Annotated[int | None, "clip length in environment steps, instead of seconds", COUNT] = None
    hard_labels: Annotated[
        bool,
        "train on decisions as if they were certain, as the 2017 paper does (default: on the probability that"
        " the site infers from all labels of a comparison)",
    ] = False
    gold: Annotated[
        float,
        "with human, share of attention checks, such as 0.05; checks are extra comparisons with a known "
        "answer from the true reward or the function of --teacher",
        Fits("a share from 0 to 0.5", lambda share: 0 <= share <= 0.5),
    ] = 0.0
    pace: Annotated[
        Pace | None,
        "labels = pause training while labels are behind schedule (default with human); free = never pause",
    ] = None
    max_episode_steps: Annotated[int | None, "episode time limit in steps", COUNT, BILLION] = None
    env_kwargs: Annotated[
        str | None,
        "environment arguments: name=value, joined by commas",
        Fits("name=value pairs separated by commas", are_named_values),
    ] = None
    obs_transform: Annotated[
        str | None,
        "module:function that maps each observation to an array (default: flatten Dict, Tuple and "
        "discrete spaces)",
        Fits("module:function or flatten", lambda name: name == "flatten" or all(name.partition(":"))),
    ] = None
    capture_frames: Annotated[
        bool,
        "record a frame at every step, for environments that cannot be replayed",
    ] = False
    allow_variable_horizon: Annotated[
        bool, "accept episodes of varying length, although the length leaks reward information (imitation)"
    ] = False
    fixed_horizon: Annotated[
        Filling | None,
        "pad episodes that end early: absorb = repeat the final observation with reward 0; restart = start"
        " the next episode within this one, until the time limit",
    ] = None
    runs_dir: Annotated[str, "parent folder of all runs"] = "runs"
    device: Annotated[str, "torch device: cpu, cuda, cuda:1"] = "cpu"
    reward: Annotated[RewardConfig, "reward predictor settings"] = field(default_factory=RewardConfig)
    queries: Annotated[QueryConfig, "query selection settings"] = field(default_factory=QueryConfig)
    stages: tuple[RunStage, ...] = ()
    """Targets of the run before each of its extensions; empty if it was never extended."""

    def __post_init__(self) -> None:
        if dataclasses.is_dataclass(self.agent):
            name, settings = settings_of_agent(self.agent)
            object.__setattr__(self, "agent", name)
            object.__setattr__(self, "agent_settings", {**settings, **self.agent_settings})
        check_fields(self)
        reject_unused(self, self.predictor)
        if self.reward.converge:
            reject_unused(self.reward, "converge", "--reward.")
        refuse(self, self._problems())
        if self.error_model.errs and self.predictor == "human":  # also raises ConfigError if it is invalid
            expected = (
                "expected only module:function, myopic:G or discount:G with human; for scripted labelers "
                "that make mistakes, use python -m teacher.bots --teacher"
            )
            refuse(self, [("teacher", expected)])
        if self.feedback != "pair":
            refuse(self, self._problems_of_kind())
        refuse(self, self.word_problems(self.feedback))

    def _problems_of_kind(self) -> Iterator[Problem]:
        if self.error_model.soft is not None:
            yield (
                "teacher",
                f"soft gives probabilities of pairs, and can't answer {self.feedback} questions; use noisy",
            )
        if (self.feedback == "study" or ASKED[self.feedback].size != 2) and self.queries.diversity != 1:
            yield (
                "queries.diversity",
                f"compares pairs, and has no effect with --feedback={self.feedback}; leave it out",
            )

    def _problems(self) -> Iterator[Problem]:
        labels = self.n_labels
        if len(self.experiment) > _MAX_EXPERIMENT_NAME:
            yield (
                "name",
                f"expected a shorter name: {self.experiment} has more than {_MAX_EXPERIMENT_NAME} characters",
            )
        if labels is None and self.predictor == "synth":
            yield "n_labels", "synth needs a number, such as -l 1400"
        if labels is not None and (self.pretrain_labels or 0) > labels:
            yield "pretrain_labels", f"expected no more than --n_labels ({labels})"
        if self.schedule is not None and labels is None:
            yield "schedule", "needs a total number of labels, such as -l 1400"
        if self.queries.selection != "random" and self.reward.num_members == 1:
            yield "queries.selection", "active needs an ensemble: --reward.members of 2 or more"
        if None not in (self.segment_seconds, self.segment_steps):
            yield "segment_seconds", "can't be combined with --segment_steps"
        if self.pretrain_steps != 0 and self.agent != "sac":
            yield "pretrain_steps", "needs -a sac"
        if self.ent_coef is not None and "ent_coef" in self.agent_settings:
            yield "ent_coef", "can't be combined with --agent.ent_coef, which is the same setting"
        if _OWN_ARGUMENTS & named_values(self.env_kwargs).keys():
            names = ", ".join(sorted(_OWN_ARGUMENTS))
            yield "env_kwargs", f"can't contain {names}, which RL-Teacher sets"
        yield from self.site_problems()

    @property
    def error_model(self) -> ErrorModel:
        """Error model parsed from the ``teacher`` setting."""
        return ErrorModel.parse(self.teacher)

    @property
    def num_pretrain_labels(self) -> int:
        """Number of labels before training starts.

        This is ``pretrain_labels`` if set, else a quarter of ``n_labels`` if set, else 175.
        """
        if self.pretrain_labels is not None:
            return self.pretrain_labels
        return DEFAULT_PRETRAIN_LABELS if self.n_labels is None else self.n_labels // 4

    @property
    def holds_for_labels(self) -> bool:
        """True if training pauses while labels are behind schedule."""
        return self.predictor == "human" and self.pace != "free"

    @property
    def warm(self) -> bool:
        """True if the run starts from a saved policy or demonstrations."""
        return self.policy is not None or self.demonstrations is not None

    @property
    def make_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for ``gymnasium.make`` and for the wrappers that :mod:`teacher.envs` adds."""
        own = {
            "max_episode_steps": self.max_episode_steps,
            "fixed_horizon": self.fixed_horizon,
            "obs_transform": self.obs_transform,
        }
        return named_values(self.env_kwargs) | {
            name: value for name, value in own.items() if value is not None
        }

    @property
    def slug(self) -> str:
        """Environment ID in a form that is valid in paths and URLs."""
        return slug(self.env_id)

    @property
    def run_dir(self) -> Path:
        """Folder of the run, ``runs/<env>/<name>``."""
        return Path(self.runs_dir) / self.slug / self.name

    @property
    def experiment(self) -> str:
        """Name of the run's experiment on the site, unique across environments."""
        return f"{self.slug}-{self.name}"


@dataclass(frozen=True)
class RunSettings:
    """Settings and ID of a run that is about to start.

    Attributes:
        run_id: ID of the run; a resumed run keeps its ID.
        reopen: True to continue even if the experiment was marked as finished on the site.
        yes: True to run the corrected command, without asking, if there are problems that it fixes.
    """

    config: TeachConfig
    run_id: uuid.UUID
    resumed: bool = False
    reopen: bool = False
    yes: bool = False


def slug(text: str) -> str:
    """Return ``text`` with any characters other than letters, digits, _ and - replaced by ``-``."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")


def from_fields(fields: Mapping[str, Any]) -> TeachConfig:
    """Make a configuration from the output of :func:`dataclasses.asdict`; missing fields get defaults."""
    parts = {name: kind(**fields[name]) for name, kind in PARTS.items() if name in fields}
    stages = tuple(RunStage(**stage) for stage in fields.get("stages", ()))
    return TeachConfig(**{**fields, **parts, "stages": stages})
