"""Checks made before a run starts, which report all problems at once with a corrected command."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console

from agents.errors import UnsupportedSpaceError
from agents.sac import require_spaces
from teacher.clips.trial import check_drawing
from teacher.data.checkpoint import CHECKPOINT_NAME
from teacher.data.segment_pool import SegmentPool
from teacher.envs.make import make_env
from teacher.envs.random_episodes import check_replay, random_steps, random_trajectories
from teacher.envs.tasks import Examined, TaskInfo, examine, make_vector_env
from teacher.envs.transform import ANY_TRANSFORM, told_flattened
from teacher.envs.trial import (
    LIMIT,
    TRIAL_EPISODES,
    Advice,
    Audience,
    Ends,
    Trial,
    choose_length,
    fillings,
    of_fixed_length,
    try_episodes,
    usual_length,
)
from teacher.errors import ConfigError, EnvironmentUnsuitableError, TeacherError, collecting, join_errors
from teacher.queries.judges import Value, goal_of
from teacher.reporting.console import waiting
from teacher.reward.building import reject_unused_of_network, working_device
from teacher.reward.images import is_image_space, with_absorbing
from teacher.settings.addresses import require_own_address
from teacher.settings.checks import Problem, named_values, refuse
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.config_files import CONFIG_NAME
from teacher.settings.corrections import PLACEHOLDERS, command_of
from teacher.settings.variables import read_redis_url, require_token
from teacher.training.parts import RunPlan, make_agent, make_predictor
from teacher.training.warmstart import read_warm_start

_TRYING = "trying random episodes:"
_IMPLIED = {
    "max_episode_steps": "the environment's own step limit",
    "obs_transform": "one-hot observations without the mission's text",
}
"""Descriptions of the settings in :attr:`Examined.implied`."""


def check(settings: RunSettings, console: Console, refused: ConfigError | None = None) -> RunPlan:
    """Check a run's settings and environment before its directory is created, and return its plan.

    Args:
        refused: error that reports settings that were invalid, and have valid values in ``settings``.

    Returns:
        Plan with the environment's properties and the settings. The default segment length is shortened if
        random episodes are short.

    Raises:
        ConfigError, EnvironmentUnsuitableError, DataError, BehaviorError: a check failed. The message
            lists all problems in one line, with a corrected command if other settings would fix them.
    """
    config = settings.config
    problems: list[TeacherError] = [] if refused is None else [refused]
    for look in (
        lambda: working_device(config.device, "--device"),
        read_redis_url,
        lambda: require_token(config.site_url),
        lambda: _require_bind_address(config),
    ):
        with collecting(problems):
            look()
    examined, fitted, notes = None, config, list[str]()
    with collecting(problems):
        examined = examine(config.env_id, config.make_kwargs, captures=config.capture_frames)
        config = fitted = dataclasses.replace(config, **examined.implied)
        notes += [f"Using --{name} {value}, {_IMPLIED[name]}." for name, value in examined.implied.items()]
        problems += examined.refusals
        if config.predictor != "rl" and not _is_resumed(config):
            fitted, more = _fit_to_episodes(config, examined, console, problems)
            notes += more
    plan = None
    if examined is not None and examined.is_supported:
        plan = RunPlan(dataclasses.replace(settings, config=fitted), examined.found)
        _check_task(plan, problems)
    if problems or plan is None:
        raise _all_of(problems, config, refused)
    task = plan.task
    if config.predictor == "human" and not _has_render_workers(config):
        with waiting(console) as show:
            show("rendering a test clip")
            if drawn_by := check_drawing(task, config.seed):
                notes.append(f"{drawn_by[0].upper()}{drawn_by[1:]}.")
    if task.flattened is not None:
        notes.append(told_flattened(task.flattened, task.observation_space))
    for note in notes:
        console.print(note, markup=False, highlight=False)
    return plan


def _all_of(problems: list[TeacherError], config: TeachConfig, refused: ConfigError | None) -> TeacherError:
    """Join all problems into one error, with a corrected command if changing settings would fix some."""
    error = join_errors(problems)
    if not error.remedy or (config.run_dir / CONFIG_NAME).exists():
        return error
    remedies = {} if refused is None else refused.remedy
    left_out = [f"--{name}" for name, value in remedies.items() if value is None]
    is_whole = all(each.remedy for each in problems)
    how = [
        *(["corrected"] if is_whole else []),
        *([f"with {', '.join(left_out)} left out"] if left_out else []),
        *([] if is_whole else ["partly corrected"]),
    ]
    # The configuration already contains replacements for the invalid settings.
    changes = {
        name: value for name, value in error.remedy.items() if name not in remedies or remedies[name] != value
    }
    command = command_of(config, changes)
    joined = type(error)(f"{error}; {', '.join(how)}: {command}", error.remedy)
    if is_whole and not any(value in (*PLACEHOLDERS, ANY_TRANSFORM) for value in error.remedy.values()):
        joined.command = command
    return joined


def _check_task(plan: RunPlan, problems: list[TeacherError]) -> None:
    config, task = plan.config, plan.task
    of_agent: list[TeacherError] = []
    with collecting(of_agent):
        if config.agent == "sac":
            _require_spaces_of_sac(task)
    if of_agent:  # other checks would fail for the same reason
        problems += of_agent
        return
    with collecting(problems):
        start = read_warm_start(config)
        if start is not None or config.agent_settings:
            on_cpu = _on_cpu(plan.settings).config
            with contextlib.closing(make_vector_env(task, 1, config.seed)) as envs:
                agent = make_agent(on_cpu if start is None else config, envs)
                if start is not None:
                    start.check(agent)
    if config.predictor == "human":
        with collecting(problems):
            (random_steps if task.captures else check_replay)(task, config.seed)
    if config.predictor == "rl":
        return
    with collecting(problems):
        if config.error_model.function is not None:
            try:
                goal = goal_of(config.error_model)
            except ConfigError as error:
                raise ConfigError(f"--teacher: {error}") from error
            if not problems:  # otherwise episodes may be shorter than a segment
                _try_goal(goal, plan)
    with collecting(problems):
        if config.network is not None:
            make_predictor(dataclasses.replace(plan, settings=_on_cpu(plan.settings)))
    if not _is_resumed(config):  # earlier versions accepted these
        with collecting(problems):
            refuse(config, _problems_of_exploration(config))
        with collecting(problems):
            own, space = config.network is not None, task.observation_space
            reject_unused_of_network(config.reward, space, own_network=own, prefix="--reward.")


def _require_spaces_of_sac(task: TaskInfo) -> None:
    try:
        require_spaces(task.observation_space, task.action_space)
    except UnsupportedSpaceError as error:
        remedy = {"agent": "ppo", "agent_settings": {}, "pretrain_steps": 0}
        raise EnvironmentUnsuitableError(f"-a sac: {str(error).rstrip('.')}", remedy) from error


def _problems_of_exploration(config: TeachConfig) -> Iterator[Problem]:
    if config.pretrain_steps >= config.num_timesteps:
        yield "pretrain_steps", f"expected less than --num_timesteps ({config.num_timesteps})"
    if config.pretrain_steps and config.warm:
        yield (
            "pretrain_steps",
            "can't be combined with --policy or --demonstrations, which exploration would overwrite",
        )


def _require_bind_address(config: TeachConfig) -> None:
    if config.predictor == "human" and config.site_url is None:
        require_own_address(config.bind)


def _has_render_workers(config: TeachConfig) -> bool:
    storage = config.storage or os.environ.get("TEACHER_STORAGE", "")
    return read_redis_url() is not None and storage.startswith("s3://")


def _is_resumed(config: TeachConfig) -> bool:
    return (config.run_dir / CHECKPOINT_NAME).exists()


def _on_cpu(settings: RunSettings) -> RunSettings:
    return dataclasses.replace(settings, config=dataclasses.replace(settings.config, device="cpu"))


def _try_goal(goal: Value, plan: RunPlan) -> None:
    """Call the user's goal function on an episode and on a segment to see whether it raises an error."""
    seed = plan.config.seed
    pool = SegmentPool(plan.segment_length, seed=seed)
    for episode in random_trajectories(plan.task, seed, num_envs=1):
        goal(episode)
        if pool.extend([episode]):
            break
    goal(pool.segments[0])


def _fit_to_episodes(
    config: TeachConfig, examined: Examined, console: Console, problems: list[TeacherError]
) -> tuple[TeachConfig, list[str]]:
    """Run random episodes; return the settings with a segment length that fits, and notes to print."""
    usual = usual_length(config.segment_seconds, examined.found.fps)
    given = config.segment_steps or (None if config.segment_seconds is None else usual)
    with waiting(console) as show:
        trial = _trial(
            config, examined, given or usual, lambda tried: show(f"{_TRYING} {tried} of {TRIAL_EPISODES}")
        )
    if examined.horizon is None and (limit := trial.limit) < LIMIT:
        longest = f"random episodes last up to {max(trial.lengths)} steps"
        remedy = {"max_episode_steps": limit}
        problems.append(EnvironmentUnsuitableError(f"{longest}; pass --max_episode_steps {limit}", remedy))
    fills: Ends = "refused" if config.fixed_horizon is None else "filled"
    ends: Ends = "accepted" if config.allow_variable_horizon else fills
    length, note, found = choose_length(trial, given, usual, ends, _audience(config, examined))
    problems += found
    if config.fixed_horizon == "absorb":
        reward = with_absorbing(config.reward, examined.found.observation_space)
        config = dataclasses.replace(config, reward=reward)
    return (dataclasses.replace(config, segment_steps=length), [f"{note}."]) if note else (config, [])


def _trial(config: TeachConfig, examined: Examined, wanted: int, tell: Callable[[int], None]) -> Trial:
    """Run random episodes and return their lengths.

    If episodes are known to have a fixed length, return that length without running episodes. If variable
    lengths are allowed and the step limit is known, truncate each episode at the segment length.
    """
    task, horizon = examined.found, examined.horizon
    if task.never_terminates and horizon is not None:
        return of_fixed_length(horizon)
    most = wanted if config.allow_variable_horizon and horizon is not None else horizon or LIMIT
    with contextlib.closing(make_env(task.env_id, task.kwargs)) as env:
        return try_episodes(env, horizon, config.seed, most, tell)


def _audience(config: TeachConfig, examined: Examined) -> Audience:
    """Say which options of ``teach`` to change."""
    other, images = examined.without_ends, is_image_space(examined.found.observation_space)

    def ways_out(trial: Trial) -> Advice:
        first, second = fillings(trial, images=images)
        fills = f"--fixed_horizon {first} (or {second}) fills the missing steps"
        ways = [fills, "--allow_variable_horizon accepts it"]
        remedy: Mapping[str, Any] = {"fixed_horizon": first}
        if other.env_id is not None:
            ways.insert(0, f"{other.env_id} never ends early")
        given = named_values(config.env_kwargs)
        untried = {name: value for name, value in other.arguments.items() if given.get(name) != value}
        if untried:
            arguments = ",".join(f"{name}={json.dumps(value)}" for name, value in untried.items())
            if config.predictor == "human":  # a judge's rewards are those of the original task
                is_json = (config.env_kwargs or "").lstrip().startswith("{")
                joined_up = ",".join(filter(None, (config.env_kwargs, arguments)))
                remedy = {"env_kwargs": json.dumps(given | untried) if is_json else joined_up}
            ways.insert(0, f"--env_kwargs {arguments} prevents it")
        return "; ".join(ways), remedy

    def segments_of(steps: int) -> Advice:
        return f"--segment_steps {steps}", {"segment_steps": steps, "segment_seconds": None}

    return Audience(examined.found.env_id, segments_of, ways_out)
