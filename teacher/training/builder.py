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

from teacher.data.checkpoint import CHECKPOINT_NAME
from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.envs.exploration import Explorer
from teacher.errors import ConfigError
from teacher.files import locked_folder, remove_held
from teacher.labeling.client import ExperimentSettings
from teacher.labeling.people import (
    SiteOptions,
    about_lost,
    about_rendering,
    ask_people,
    open_site,
    reopen_experiment,
)
from teacher.queries.collector import Collector
from teacher.queries.judges import value_of
from teacher.queries.learning import PreferenceLearning
from teacher.queries.synthetic import SyntheticTeacher, scripted_judge
from teacher.reward.building import working_device
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.saved_config import load_config, refuse_existing, save_config
from teacher.training.multiprocess import Followers
from teacher.training.parts import make_predictor, schedule_of, uses_numpy
from teacher.training.plan import RunPlan, task_of
from teacher.training.run import Run, Teaching
from teacher.training.start import check, warm_start_of
from teacher.training.warmstart import PLOT_NAME

POOL_BYTES = 2**30  # memory limit for segments; rarely reached unless observations are images


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
        console: console to print to; None for standard output.

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

    Raises:
        ConfigError: another process is using the directory, the directory cannot be created, or it does not
            contain the run to resume.
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
    """Return True if the run has saved a checkpoint or recorded a comparison in its ledger."""
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
    hold: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
) -> Run:
    """Build a run with all its components; closing the run closes them.

    If the run has a checkpoint, it resumes from there. Otherwise it starts from the policy and
    demonstrations in its settings, if any.

    Args:
        plan: the run's settings and environment.
        console: console to print to.
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
    with contextlib.ExitStack() as parts:
        learns = config.predictor != "rl"
        reads = hold is not None and (not learns or (config.run_dir / LEDGER_NAME).exists())
        teaching = _learning(plan, _ledger(config, parts, read_only=reads)) if learns else None
        run = Run(plan, console, parts, followers, teaching)
        run.on_begin = partial(_begin, run, plan, hold)
        if not reads:
            run.begin()
        run.parts = parts.pop_all()
    return run


def _ledger(config: TeachConfig, parts: contextlib.ExitStack, *, read_only: bool) -> Ledger:
    path = config.run_dir / LEDGER_NAME
    ledger = Ledger(path, hard_labels=config.hard_labels, read_only=read_only)
    return parts.enter_context(contextlib.closing(ledger))


def _begin(
    run: Run, plan: RunPlan, hold: Callable[[], contextlib.AbstractContextManager[None]] | None
) -> None:
    """Open what training writes to, and apply a new run's warm start."""
    config, teaching = plan.config, run.teaching
    if hold is not None:
        run.parts.enter_context(hold())
        run.require_unchanged()
        if teaching is not None:
            teaching.ledger.close()
            teaching.reopened(_ledger(config, run.parts, read_only=False))
    start = warm_start_of(config)
    if teaching is not None:
        _connect(run, plan, teaching)
    run.open_outputs()
    if {"activation", "network"} & config.agent_settings.keys() and not uses_numpy(run.agent):
        run.console.print(
            "This policy network trains in PyTorch. A network with only tanh layers would train "
            "faster, using NumPy."
        )
    if config.warm:
        run.agent.skip_random_actions()
    if start is not None:
        start.give(run.agent, run.console.rich, config.seed, config.run_dir / PLOT_NAME)
        run.save()  # so that a resumed run does not repeat the warm start
    run.followers.begin(config, run.env_seed, run.agent)


def _connect(run: Run, plan: RunPlan, teaching: Teaching) -> None:
    """Connect a run to the source of its labels."""
    config, ledger = plan.config, teaching.ledger
    if config.predictor == "synth":
        judge = scripted_judge(config.error_model, config.seed, ledger, teaching.pool)
        teaching.collector = SyntheticTeacher(ledger, config.seed, judge)
    else:
        teaching.collector, run.address, run.welcome = _people(plan, ledger, run.parts)
    run.explorer = _explorer(plan, ledger)
    run.parts.callback(run.explorer.close)


def _learning(plan: RunPlan, ledger: Ledger) -> Teaching:
    """Create the preference learning of a run, whose collector gives no labels before the run begins."""
    config = plan.config
    return PreferenceLearning(
        ledger,
        PreferenceDataset(config.reward.max_preferences),
        SegmentPool(plan.segment_length, seed=config.seed, max_bytes=POOL_BYTES),
        schedule_of(config),
        make_predictor(plan),
        queries=config.queries,
    )


def _people(plan: RunPlan, ledger: Ledger, parts: contextlib.ExitStack) -> tuple[Collector, str, list[str]]:
    """Connect to the labeling site; return the collector, the labeling URL and the lines to print."""
    config, settings = plan.config, plan.settings
    site = open_site(_site_options(config), ledger, parts)
    experiment = _experiment(config, settings.run_id, plan.task.fps)
    if settings.reopen:
        reopen_experiment(site, ledger, experiment)
    collector = ask_people(site, ledger, experiment, parts, value_of(config.error_model))
    address = collector.experiment.invite_url
    watch = collector.experiment.watch_url or collector.experiment.page_url
    welcome = [
        f"Label here: {address}",
        f"Watch, pause and finish the run here: {watch}",
        *_about_prompt(collector.experiment.prompt, config.prompt),
        *(*site.welcome, *about_lost(collector), *about_rendering(site)),
    ]
    return collector, address, welcome


def _explorer(plan: RunPlan, ledger: Ledger) -> Explorer:
    """Create the explorer, seeded with the run's seed and the number of comparisons so far.

    The count prevents a resumed run from repeating earlier episodes.
    """
    queries = plan.config.queries
    return Explorer(plan.task, (plan.config.seed, ledger.total()), queries.switch_prob, queries.random_prob)


def _site_options(config: TeachConfig) -> SiteOptions:
    return SiteOptions(
        name=config.experiment,
        prompt=config.prompt,
        site_url=config.site_url,
        storage=config.storage,
        state_dir=config.state_dir,
        bind=config.bind,
        public_url=config.public_url,
    )


def _experiment(config: TeachConfig, run_id: uuid.UUID, fps: int) -> ExperimentSettings:
    return ExperimentSettings(
        name=config.experiment,
        run_id=run_id,
        env_id=config.env_id,
        prompt=config.prompt,
        n_labels=config.n_labels,
        fps=fps,
        has_true_reward=True,
        gold_rate=config.gold or None,
        pretrain_labels=config.num_pretrain_labels,
    )


def _about_prompt(shown: str, configured: str) -> list[str]:
    """Return a one-item list with a message if the prompt was changed on the site, or else an empty list."""
    return [] if shown == configured else [f"The prompt was changed on the site. Labelers see: {shown}"]
