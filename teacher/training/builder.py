"""Construction of a run and all its components from its settings."""

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

from agents.sac import SAC
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state, restoring
from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.envs.random_episodes import Explorer
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError
from teacher.files import locked_folder, remove_held
from teacher.labeling.client import ExperimentSettings
from teacher.labeling.people import about_lost, about_rendering, ask_people, open_site, reopen_experiment
from teacher.queries.collector import Collector, SyntheticTeacher, scripted_judge
from teacher.queries.judges import value_of
from teacher.queries.kinds import kinds_of
from teacher.queries.learning import PreferenceLearning
from teacher.queries.study import Study
from teacher.reporting.console import RunConsole
from teacher.reporting.metrics import LOG_FOLDER, Metrics
from teacher.reporting.tracking import Tracking, open_tracking
from teacher.reporting.videos import EpisodeVideos
from teacher.reward.building import working_device
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.config_files import load_config, refuse_existing, save_config
from teacher.training.multiprocess import Followers
from teacher.training.parts import (
    RunPlan,
    make_agent,
    make_envs,
    make_predictor,
    schedule_of,
    task_of,
    uses_numpy,
)
from teacher.training.run import REPLAY_NAME, Opened, Run, Teaching
from teacher.training.start import check
from teacher.training.warmstart import read_warm_start

Hold = Callable[[], contextlib.AbstractContextManager[None]]

POOL_BYTES = 2**30  # memory limit for segments; rarely reached unless observations are images
_RESUMED = 2  # seed stream of resumed runs, distinct from those in teacher/envs/random_episodes.py


@contextlib.contextmanager
def open_run(source: TeachConfig | str | Path, console: Console | None = None) -> Iterator[Run]:
    """Start a new run, or open a saved one; close it when the ``with`` block ends, and save it if it trained.

    Opening a saved run only reads it, even while another process trains it. :func:`train` locks it, connects
    to its site and its experiment tracker, and trains it further.

    ::

        with open_run(TeachConfig(env_id="ShortHopper-v1", predictor="synth", name="a", n_labels=300)) as run:
            train(run)

    Args:
        source: settings of a new run, or the directory of a saved run.

    Raises:
        ConfigError, EnvironmentUnsuitableError, DataError, BehaviorError: the run cannot start. The one-line
            message says what to change.
    """
    console = console or Console(soft_wrap=True)
    with contextlib.ExitStack() as opened:
        if isinstance(source, TeachConfig):
            settings = RunSettings(source, uuid.uuid4())
            refuse_existing(source)
            plan = check(settings, console)
            opened.enter_context(prepared_directory(plan.settings))
            run = opened.enter_context(build_run(plan, console))
        else:
            settings = RunSettings(*load_config(Path(source)), resumed=True)
            working_device(settings.config.device, "--device")
            plan = RunPlan(settings, task_of(settings.config))
            run = opened.enter_context(build_run(plan, console, hold=partial(_checked, plan, console)))
        yield run
        if run.begun:
            run.save()
            run.track_results()


@contextlib.contextmanager
def _checked(plan: RunPlan, console: Console) -> Iterator[None]:
    """Lock the directory of a saved run that has been read, after the checks of ``teach --resume``."""
    check(plan.settings, console)
    with prepared_directory(plan.settings):
        yield


@contextlib.contextmanager
def prepared_directory(settings: RunSettings) -> Iterator[None]:
    """Create the run directory, save the configuration in it, and lock it against other processes.

    If a new run fails before its first comparison or checkpoint, its directory is removed, so that the run
    can be started again under the same name.
    """
    config = settings.config
    missing = [folder for folder in (config.run_dir, *config.run_dir.parents) if not folder.exists()]
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked_folder(config.run_dir))
        except BlockingIOError as error:
            raise ConfigError(
                f"{config.run_dir} is in use by another teach process; stop that one first"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot create the run directory {config.run_dir}: {error.strerror}"
            ) from error
        if not settings.resumed:
            refuse_existing(config)  # check again now that the directory is locked
            save_config(config, settings.run_id)
        try:
            # Read again now that the directory is locked: a failed run may have removed it meanwhile.
            if settings.resumed and load_config(config.run_dir)[0] != config:  # the run is extended
                save_config(config, settings.run_id)
            yield
        except BaseException:
            if config.run_dir in missing and not _has_begun(config):
                remove_held(config.run_dir)
                with contextlib.suppress(OSError):  # a folder is not empty if another run uses it
                    for folder in missing[1:]:
                        folder.rmdir()
            raise


def _has_begun(config: TeachConfig) -> bool:
    if (config.run_dir / CHECKPOINT_NAME).exists():
        return True
    path = config.run_dir / LEDGER_NAME
    if not path.exists():
        return False
    with contextlib.closing(Ledger(path, read_only=True)) as ledger:
        return ledger.total() > 0


def build_run(
    plan: RunPlan,
    console: Console,
    followers: Followers | None = None,
    hold: Hold | None = None,
) -> Run:
    """Build a run with all its components; closing the run closes them.

    If the run has a checkpoint, it resumes from there. Otherwise it starts from the policy and
    demonstrations in its settings, if any.

    Args:
        followers: controls the other processes of the run; None if it trains in this process only.
        hold: function that locks the run's directory. The run is then only read until :meth:`Run.begin` is
            called, unless it learns from labels and has no ledger yet. None if the caller has locked the
            directory; the run then begins at once.
    """
    followers = followers or Followers()
    torch.set_num_threads(1)  # more threads only slow down networks this small
    threadpool_limits(1, "blas")
    config = plan.config
    here = dataclasses.replace(config, device=followers.ranks.device(config.device))
    plan = dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, config=here))
    stack = contextlib.ExitStack()
    with contextlib.ExitStack() as until_built:
        until_built.push(stack)
        learns = config.predictor != "rl"
        reads = hold is not None and (not learns or (config.run_dir / LEDGER_NAME).exists())
        teaching = _learning(plan, _ledger(config, stack, read_only=reads)) if learns else None
        run = _load_run(plan, RunConsole(console), stack, followers, teaching, hold)
        if not reads:
            run.begin()
        until_built.pop_all()
    return run


def _load_run(
    plan: RunPlan,
    console: RunConsole,
    stack: contextlib.ExitStack,
    followers: Followers,
    teaching: Teaching | None,
    hold: Hold | None,
) -> Run:
    """Make the environments and the agent, and restore the agent and ``teaching`` from the checkpoint."""
    config, ranks = plan.config, followers.ranks
    checkpoint, seed = config.run_dir / CHECKPOINT_NAME, config.seed
    env_seed: int | list[int] = seed
    begin = partial(_open_outputs, hold, _stamp(config))
    state = load_state(checkpoint) if checkpoint.exists() else None
    if state is not None:
        # A resumed run starts new episodes. With the original seeds it would repeat the old ones.
        with restoring(checkpoint):
            env_seed = [seed, _RESUMED, int(state["agent"]["total_steps"])]
    envs = make_envs(plan, env_seed, ranks)
    stack.callback(envs.close)
    agent = make_agent(config, envs, config.run_dir / REPLAY_NAME)
    agent.ranks = ranks
    if isinstance(agent, SAC):
        agent.buffer.keeps_files = True
    if state is not None:
        with restoring(checkpoint):
            agent.load_state_dict(state["agent"])
            if teaching is not None:
                teaching.load_state_dict(state["teaching"])
    return Run(plan, console, stack, followers, teaching, envs, env_seed, agent, state, begin)


def _ledger(config: TeachConfig, stack: contextlib.ExitStack, *, read_only: bool) -> Ledger:
    path = config.run_dir / LEDGER_NAME
    ledger = Ledger(path, hard_labels=config.hard_labels, read_only=read_only)
    return stack.enter_context(contextlib.closing(ledger))


def _stamp(config: TeachConfig) -> tuple[int, int] | None:
    """Return what tells the present checkpoint file from earlier and later ones; None without one."""
    try:
        status = (config.run_dir / CHECKPOINT_NAME).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _open_outputs(hold: Hold | None, stamp: tuple[int, int] | None, run: Run) -> Opened:
    config, teaching, stack, agent, console = run.config, run.teaching, run.stack, run.agent, run.console.rich
    if hold is not None:
        stack.enter_context(hold())
        if _stamp(config) != stamp:
            raise ConfigError(f"{config.run_dir} has been trained since it was opened; open it again")
        if teaching is not None:
            teaching.ledger.close()
            teaching.reopened(_ledger(config, stack, read_only=False))
    start = read_warm_start(config)
    explorer, address, welcome = None, "", list[str]()
    if teaching is not None:
        address, welcome = _connect(run, teaching)
        queries = config.queries
        # The count prevents a resumed run from repeating earlier episodes.
        seed = (config.seed, teaching.ledger.total())
        explorer = Explorer(run.task, seed, queries.switch_prob, queries.random_prob)
        stack.callback(explorer.close)
    if isinstance(agent, SAC):
        agent.buffer.use_files()
    tracking = open_tracking(run.plan.settings, agent.config, console)
    if tracking is not None:
        stack.callback(tracking.close)  # after the videos have been closed
    metrics = Metrics(
        config.run_dir / LOG_FOLDER,
        config.num_timesteps,
        agent.total_steps,
        console,
        people=config.predictor == "human",
    )
    stack.callback(metrics.close)
    videos = None if config.no_videos else _open_videos(run, tracking)
    if {"activation", "network"} & config.agent_settings.keys() and not uses_numpy(agent):
        console.print(
            "This policy network trains in PyTorch. A network with only tanh layers would train "
            "faster, using NumPy."
        )
    if config.warm:
        agent.skip_random_actions()
    if start is not None:
        start.give(agent, console)
        run.save()  # so that a resumed run does not repeat the warm start
    run.followers.begin(config, run.env_seed, agent)
    return Opened(metrics, videos, tracking, explorer, address, welcome)


def _open_videos(run: Run, tracking: Tracking | None) -> EpisodeVideos:
    def show(video: Path, step: int, episode: Trajectory) -> None:
        if run.teaching is not None:
            run.teaching.collector.show(video, step, episode)
        if tracking is not None:
            tracking.log_video(video, step)

    folder, steps = run.config.run_dir / "videos", run.config.num_timesteps
    videos = EpisodeVideos(folder, steps, run.task.fps, run.console.rich, show)
    run.stack.callback(videos.close)
    return videos


def _connect(run: Run, teaching: Teaching) -> tuple[str, list[str]]:
    """Connect a run to the source of its labels; return the labeling URL and the lines to print."""
    config, settings, ledger, stack = run.config, run.plan.settings, teaching.ledger, run.stack
    if config.predictor == "synth":
        judge = scripted_judge(config.error_model, config.seed, ledger, teaching.pool, config.feedback)
        teaching.collector = SyntheticTeacher(ledger, config.seed, judge)
        return "", []
    experiment = ExperimentSettings(
        name=config.experiment,
        run_id=settings.run_id,
        env_id=config.env_id,
        prompt=config.prompt,
        n_labels=config.n_labels,
        fps=run.task.fps,
        has_true_reward=True,
        gold_rate=config.gold or None,
        pretrain_labels=config.num_pretrain_labels,
        lowest_rating=config.lowest_rating,
        highest_rating=config.highest_rating,
        feedback=config.feedback,
    )
    site = open_site(config, ledger, stack)
    if settings.reopen:
        reopen_experiment(site, ledger, experiment)
    collector = ask_people(site, ledger, experiment, stack, value_of(config.error_model))
    teaching.collector = collector
    found = collector.experiment
    welcome = [f"Label and watch here: {found.url}"]
    if found.prompt != config.prompt:
        welcome.append(f"The prompt was changed on the site. Labelers see: {found.prompt}")
    welcome += [*about_lost(collector), *about_rendering(site)]
    return found.url, welcome


def _learning(plan: RunPlan, ledger: Ledger) -> Teaching:
    """Create the preference learning of a run, whose collector gives no labels before the run begins."""
    config = plan.config
    return PreferenceLearning(
        ledger,
        PreferenceDataset(config.reward.max_preferences),
        SegmentPool(plan.segment_length, seed=config.seed, max_bytes=POOL_BYTES),
        schedule_of(config),
        make_predictor(plan),
        collector=Collector(ledger),
        queries=config.queries,
        kinds=kinds_of(config.feedback),
        study=Study(partial(make_predictor, plan)) if config.feedback == "study" else None,
    )
