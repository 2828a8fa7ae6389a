"""The settings of one run: a frozen dataclass, each field documented, validated and saved as JSON."""

import dataclasses
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from teacher.errors import ConfigError, one_line
from teacher.files import atomic_write
from teacher.settings.addresses import site_checks
from teacher.settings.checks import (
    BILLION,
    COUNT,
    MILLION,
    NOT_NEGATIVE,
    SEED,
    Check,
    Fits,
    are_named_values,
    at_most,
    check_fields,
    named_values,
    refuse_all,
    refuse_newer,
)
from teacher.settings.options import (
    REWARD_BEFORE,
    QueryConfig,
    RewardConfig,
    RunStage,
    with_new_names,
    with_preset,
)
from teacher.settings.teachers import ErrorModel


class HasFields(Protocol):
    """A dataclass, such as :class:`agents.PPOConfig`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Predictor = Literal["rl", "synth", "human"]
AgentName = Literal["ppo", "trpo"]
Pace = Literal["labels", "free"]
Filling = Literal["absorb", "restart"]
RateName = Literal["constant", "hyperbolic", "inverse_quadratic", "paper_mujoco", "paper_atari"]
ScheduleName = Literal["exponential", RateName]

DEFAULT_PRETRAIN_LABELS = 175
DEFAULT_PROMPT = "Choose the clip in which the agent does better."
PARTS = {"reward": RewardConfig, "queries": QueryConfig}
NO_OPTIONS = {*PARTS, "stages", "agent_settings"}
"""Fields of :class:`TeachConfig` that no option of the command line sets as a whole."""
CONFIG_NAME = "config.json"
_OWN_ARGUMENTS = {"max_episode_steps", "obs_transform", "fixed_horizon", "render_mode", "disable_env_checker"}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MAX_EXPERIMENT_NAME = 100  # the site's limit


@dataclass(frozen=True, kw_only=True)
class TeachConfig:
    """Everything that decides how a run goes; raises :class:`ConfigError` where values do not fit.

    Each field is annotated with its help text and, where it has them, its short flag and what fits.
    """

    env_id: Annotated[
        str, "Gymnasium environment id, or module:Env-v0", "-e", Fits("an environment id", str.strip)
    ]
    predictor: Annotated[
        Predictor,
        "where rewards come from: rl = the true one, synth = labels made from it, human = people",
        "-p",
    ]
    name: Annotated[
        str,
        "name of this run: letters, digits, _ and -",
        "-n",
        Fits("letters, digits, _ and - only", _NAME.fullmatch),
    ]
    seed: Annotated[int, "seed of everything random", "-s", SEED] = 1
    workers: Annotated[int, "threads that step environments; results do not depend on it", "-w", COUNT] = 1
    n_labels: Annotated[
        int | None,
        "labels in all; without it one is asked every 3 s of training",
        "-l",
        Fits("4 or more", lambda count: count >= 4),
        BILLION,
    ] = None
    pretrain_labels: Annotated[
        int | None,
        f"labels before training starts (a quarter of n_labels, or {DEFAULT_PRETRAIN_LABELS} without it)",
        "-L",
        COUNT,
        BILLION,
    ] = None
    schedule: Annotated[
        ScheduleName | None,
        "how n_labels are spread over training: exponential, as in rl-teacher (the rule); evenly; at a rate "
        "that falls to a half by its end; or as in the paper, in proportion to 2e6/(T+2e6) at step T on "
        "MuJoCo and to 5e6/(T+5e6) on Atari",
    ] = None
    teacher: Annotated[
        str,
        "how synth answers: oracle, mistake:P, noisy:T, soft:T, skip:X, equal:X, myopic:G, discount:G, "
        "module:function, several with commas; with human, what scripted labelers want",
    ] = "oracle"
    num_timesteps: Annotated[int, "environment steps to train for; 5e6 is understood", "-t", COUNT] = (
        5_000_000
    )
    agent: Annotated[
        AgentName | HasFields,
        "the learning algorithm; in Python also its configuration, PPOConfig(...)",
        "-a",
    ] = "ppo"
    agent_settings: Mapping[str, Any] = field(default_factory=dict)
    """The hyperparameters that differ from the task's own, as ``--agent.*`` has them."""
    num_envs: Annotated[
        int | None, "environments stepped at once (the task's own without it)", COUNT, at_most("4096")
    ] = None
    ent_coef: Annotated[
        float | None,
        "what a nat of the policy's entropy is worth beside advantages of deviation 1; more keeps an agent "
        "trying where rewards change (the task's own without it, 0 for most)",
        NOT_NEGATIVE,
        at_most("1000"),
    ] = None
    value_refit: Annotated[
        int,
        "epochs in which the critic alone learns the rewards of a predictor that was fitted anew",
        NOT_NEGATIVE,
        MILLION,
    ] = 0
    pretrain_iters: Annotated[
        int, "at most this many updates of the predictor before training", "-i", COUNT
    ] = 10_000
    policy: Annotated[str | None, "start from the policy of this run directory or checkpoint.npz"] = None
    demonstrations: Annotated[
        str | None,
        "start from a clone of these demonstrations, an .npz file; after --policy, if both are given",
    ] = None
    network: Annotated[
        str | None,
        "module:function that makes each network of the reward predictor: it gets the shape of what is read "
        "of a step, and returns a torch module, (n, *shape) numbers to (n,) rewards",
    ] = None
    no_videos: Annotated[bool, "write no clips of whole episodes", "-V"] = False
    prompt: Annotated[
        str,
        "the sentence labelers see",
        Fits("one sentence of at most 500 characters", lambda text: 0 < len(text.strip()) <= 500),
    ] = DEFAULT_PROMPT
    segment_seconds: Annotated[
        float | None,
        "length of a clip in seconds (1.5 without it, or half an episode where random ones are shorter)",
        Fits("more than 0 and at most 60", lambda seconds: 0 < seconds <= 60),
    ] = None
    segment_steps: Annotated[
        int | None, "length of a clip in environment steps, instead of seconds", COUNT
    ] = None
    hard_labels: Annotated[
        bool,
        "learn decisions of people as certain; without it as probable as the site makes them of several "
        "labels, which it weighs by what each labeler is worth",
    ] = False
    gold: Annotated[
        float,
        "with human: a share, such as 0.05, of further pairs is mixed in, about which the true reward, "
        "or the function of --teacher, leaves no doubt: they find out who does not look",
        Fits("a share from 0 to 0.5", lambda share: 0 <= share <= 0.5),
    ] = 0.0
    pace: Annotated[
        Pace | None,
        "labels = hold training while answers are too far behind (the rule with human); free = never wait",
    ] = None
    max_episode_steps: Annotated[int | None, "end episodes after this many steps", COUNT, BILLION] = None
    env_kwargs: Annotated[
        str | None,
        "arguments of the environment: name=value, several with commas",
        Fits("name=value, several with commas", are_named_values),
    ] = None
    obs_transform: Annotated[
        str | None,
        "module:function that makes an array of each observation (numbers of several parts or choices are "
        "flattened without it)",
        Fits("module:function or flatten", lambda name: name == "flatten" or all(name.partition(":"))),
    ] = None
    capture_frames: Annotated[
        bool,
        "keep a picture of every step for clips, for environments whose episodes cannot be played again",
    ] = False
    allow_variable_horizon: Annotated[
        bool, "accept an environment whose episodes end early, although their length leaks the reward"
    ] = False
    fixed_horizon: Annotated[
        Filling | None,
        "make all episodes as long as their limit, where they end early: absorb = the last state stays, with "
        "reward 0; restart = the next life begins within the episode",
    ] = None
    site_url: Annotated[
        str | None, "labeling site to use, its token in TEACHER_TOKEN (without it: one on this machine)"
    ] = None
    storage: Annotated[str | None, "where clips go: s3://bucket/prefix or a folder"] = None
    state_dir: Annotated[str, "folder of the site on this machine"] = "state"
    bind: Annotated[str, "address that the site on this machine listens on"] = "127.0.0.1"
    public_url: Annotated[str | None, "address by which others reach the site on this machine"] = None
    runs_dir: Annotated[str, "folder of all runs"] = "runs"
    device: Annotated[str, "torch device: cpu, cuda, cuda:1"] = "cpu"
    reward: Annotated[RewardConfig, "the reward predictor"] = field(default_factory=RewardConfig)
    queries: Annotated[QueryConfig, "the choice of pairs to ask about"] = field(default_factory=QueryConfig)
    stages: tuple[RunStage, ...] = ()
    """What the run was to come to before each time that it was extended; of a resumed run alone."""

    def __post_init__(self) -> None:
        if dataclasses.is_dataclass(self.agent):
            name, settings = settings_of_agent(self.agent)
            object.__setattr__(self, "agent", name)
            object.__setattr__(self, "agent_settings", {**settings, **self.agent_settings})
        check_fields(self)
        refuse_all(self, self._checks())
        refuse_all(self, self._teacher_checks())

    def _checks(self) -> list[Check]:
        labels = self.n_labels
        return [
            (
                "name",
                len(self.experiment) <= _MAX_EXPERIMENT_NAME,
                f"expected a shorter name: {self.experiment} has more than {_MAX_EXPERIMENT_NAME} characters",
            ),
            (
                "n_labels",
                labels is not None or self.predictor != "synth",
                "synth needs a number, such as -l 1400",
            ),
            (
                "pretrain_labels",
                None in (self.pretrain_labels, labels) or (self.pretrain_labels or 0) <= (labels or 0),
                f"expected no more than --n_labels ({labels})",
            ),
            (
                "schedule",
                self.schedule is None or labels is not None,
                "spreads a number of labels, so it needs one, such as -l 1400",
            ),
            (
                "queries.selection",
                self.queries.selection == "random" or self.reward.members > 1,
                "active compares the predictor's members, so it needs --reward.members of 2 or more",
            ),
            (
                "gold",
                self.gold == 0 or self.predictor == "human",
                "finds out labelers who do not look, so it needs -p human",
            ),
            (
                "ent_coef",
                self.ent_coef is None or "ent_coef" not in self.agent_settings,
                "expected no --agent.ent_coef beside it, which is the same",
            ),
            (
                "network",
                self.network is None or self.predictor != "rl",
                "rl learns from the true reward, so it has no predictor",
            ),
            (
                "network",
                self.network is None or self.reward.shaping is None,
                "expected no --reward.shaping beside it; the module may do that itself",
            ),
            (
                "env_kwargs",
                not _OWN_ARGUMENTS & named_values(self.env_kwargs).keys(),
                f"expected none of {', '.join(sorted(_OWN_ARGUMENTS))}, which are set in another way",
            ),
            *site_checks(self.site_url, self.storage, self.bind, self.public_url),
        ]

    def _teacher_checks(self) -> list[Check]:
        error_model = self.error_model  # which refuses what cannot be read
        return [
            (
                "teacher",
                self.predictor != "rl" or error_model == ErrorModel(),
                "rl learns from the true reward, not from a teacher",
            ),
            (
                "teacher",
                self.predictor != "human" or not error_model.errs,
                (
                    "with human only module:function, myopic:G or discount:G; labelers err by themselves, "
                    "scripted ones with python -m teacher.bots --teacher"
                ),
            ),
        ]

    @property
    def error_model(self) -> ErrorModel:
        """How the scripted teacher answers."""
        return ErrorModel.parse(self.teacher)

    @property
    def num_pretrain_labels(self) -> int:
        """Labels asked before training: as given, else a quarter of all, else rl-teacher's 175."""
        if self.pretrain_labels is not None:
            return self.pretrain_labels
        return DEFAULT_PRETRAIN_LABELS if self.n_labels is None else self.n_labels // 4

    @property
    def holds_for_labels(self) -> bool:
        """Whether training waits for people."""
        return self.predictor == "human" and self.pace != "free"

    @property
    def warm(self) -> bool:
        """Whether the policy has learned something before the run begins."""
        return self.policy is not None or self.demonstrations is not None

    @property
    def make_kwargs(self) -> dict[str, Any]:
        """Arguments of ``gymnasium.make`` and of this project's own wrappers."""
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
        """The environment's id as a folder name and as a part of an address."""
        return slug(self.env_id)

    @property
    def run_dir(self) -> Path:
        """``runs/<env>/<name>``."""
        return Path(self.runs_dir) / self.slug / self.name

    @property
    def experiment(self) -> str:
        """The run's name on the site, unique across environments."""
        return f"{self.slug}-{self.name}"


@dataclass(frozen=True)
class RunSettings:
    """What a command line asks for.

    Attributes:
        run_id: made anew, or of the run that goes on.
        resumed: whether it goes on from an earlier one.
        reopen: whether it goes on although its experiment was finished on the site.
        refused: what does not fit of the settings that were given; others are in the place of these.
    """

    config: TeachConfig
    run_id: uuid.UUID
    resumed: bool = False
    reopen: bool = False
    refused: ConfigError | None = None


def settings_of_agent(config: HasFields) -> tuple[str, dict[str, Any]]:
    """Return the name of an algorithm and its hyperparameters, from its configuration in Python.

    Raises:
        ConfigError: a network is no function of a module, so no configuration can be saved with it.
    """
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__}
    network = settings.get("network")
    if callable(network):
        name = f"{network.__module__}:{getattr(network, '__qualname__', '')}"
        if "<" in name or network.__module__ == "__main__":
            raise ConfigError(
                "--agent.network: expected a function of a module, which can be imported again; got "
                f"{one_line(repr(network))}"
            )
        settings["network"] = name
    return type(config).__name__.removesuffix("Config").lower(), settings


def slug(text: str) -> str:
    """A text as a folder name and as a part of an address."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")


def from_options(options: Mapping[str, Any]) -> TeachConfig:
    """The configuration that the options of a command line give: ``{"seed": 3, "reward.members": 5}``.

    ``preset`` may be among them; what is given beside it counts.

    Raises:
        ConfigError: a value does not fit.
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


def from_fields(fields: Mapping[str, Any]) -> TeachConfig:
    """The reverse of :func:`dataclasses.asdict`; what is missing has its default.

    Raises:
        ConfigError: a value does not fit.
        TypeError: a field is unknown.
    """
    parts = {name: kind(**fields[name]) for name, kind in PARTS.items() if name in fields}
    stages = tuple(RunStage(**stage) for stage in fields.get("stages", ()))
    return TeachConfig(**{**fields, **parts, "stages": stages})


def refuse_existing(config: TeachConfig) -> None:
    """Raise :class:`ConfigError` where there is a run of this name already."""
    if (config.run_dir / CONFIG_NAME).exists():
        raise ConfigError(
            f"{config.run_dir} exists; go on with teach --resume {config.run_dir}, or choose another -n"
        )


def save_config(config: TeachConfig, run_id: uuid.UUID) -> None:
    """Write ``config.json`` into the run directory, whole or not at all.

    Folders and files are written as absolute paths, so that a run resumed from elsewhere finds the same site
    and clips, and tells what it began from.
    """
    data = {"run_id": str(run_id), **dataclasses.asdict(config)}
    for name in ("state_dir", "policy", "demonstrations"):
        if data[name] is not None:
            data[name] = str(Path(data[name]).absolute())
    if config.storage is not None and "://" not in config.storage:
        data["storage"] = str(Path(config.storage).absolute())
    with atomic_write(config.run_dir / CONFIG_NAME) as file:
        file.write(json.dumps(data, indent=2).encode() + b"\n")


def load_config(run_dir: Path) -> tuple[TeachConfig, uuid.UUID]:
    """Read ``config.json`` of a run. Raises :class:`ConfigError` where there is none that fits."""
    path = run_dir / CONFIG_NAME
    try:
        data = json.loads(path.read_text())
        run_id = uuid.UUID(data.pop("run_id"))
        # The folder may have been moved since it was written.
        data["runs_dir"] = str(run_dir.resolve().parent.parent)
        refuse_newer(path, TeachConfig, data)
        data["reward"] = with_new_names(data.get("reward", {}))
        for part, kind in PARTS.items():
            refuse_newer(path, kind, data.get(part, ()), f"{part}.")
        data["reward"] = REWARD_BEFORE | data["reward"]
        config = from_fields(data)
    except FileNotFoundError as error:
        raise ConfigError(f"expected a run directory with a config.json; {path} does not exist") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error}") from error
    if config.run_dir.resolve() != run_dir.resolve():
        raise ConfigError(f"{run_dir} was renamed; expected it to end in {config.slug}/{config.name}")
    return config, run_id
