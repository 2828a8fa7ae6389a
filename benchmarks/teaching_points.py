"""Tasks, sides and runs of the label-efficiency benchmark."""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from teacher.settings.config import TeachConfig
from teacher.teach import parse_arguments


@dataclass(frozen=True)
class Task:
    """An environment with the length of its runs.

    Attributes:
        env_id: environment ID.
        steps: environment steps per run.
        budgets: numbers of labels for sides with all budgets, such as the oracle.
        standard: number of labels for all other sides.
        seeds: number of seeds, counted from 1.
    """

    env_id: str
    steps: int
    budgets: tuple[int, ...]
    standard: int
    seeds: int = 5


TASKS: Mapping[str, Task] = {
    "Pendulum": Task("Pendulum-v1", 100_000, (50, 200), 200, seeds=8),
    "Reacher": Task("teacher/Reacher-v1", 500_000, (50, 175, 350), 350, seeds=8),
    "Hopper": Task("teacher/Hopper-v1", 1_000_000, (50, 350, 700), 700),
    "Cheetah": Task("teacher/Cheetah-v1", 1_000_000, (50, 100, 350, 700), 700),
    "ShortHopper": Task("teacher/ShortHopper-v1", 300_000, (300,), 300),
    "ShortCheetah": Task("teacher/ShortCheetah-v1", 300_000, (300,), 300),
    "Walker": Task("teacher/Walker-v1", 1_000_000, (700,), 700),
    "Swimmer": Task("teacher/Swimmer-v1", 1_000_000, (700,), 700),
    "Ant": Task("teacher/Ant-v1", 1_000_000, (700,), 700),
}
STANDARD_TASKS = ("Pendulum", "Reacher", "Hopper", "Cheetah")
_SHORT_TASKS = ("Pendulum", "Reacher")
_SHORTEST_TASKS = ("Pendulum",)
_NETWORK = "reward.model=network"
_PLAIN = "reward.features=plain"
_ACTION = f"reward.inputs=state,action {_PLAIN}"
_EVEN = "reward.features=even reward.strength=3"


@dataclass(frozen=True)
class Side:
    """One method of training a policy.

    Attributes:
        title: name in tables and plots.
        options: ``teach`` options, such as ``reward.members=5 no_videos``.
        taught: True if it learns from labels.
        all_budgets: True to run it with all of the task's budgets, False with only the standard one.
        tasks: tasks to run it on; None means all.
    """

    title: str
    options: str = ""
    taught: bool = True
    all_budgets: bool = False
    tasks: tuple[str, ...] | None = None


SIDES: Mapping[str, Side] = {
    "random": Side("random actions", taught=False),
    "rl": Side("true reward", taught=False),
    "oracle": Side("oracle", all_budgets=True),
    "mistakes-10": Side("10 % mistakes", options="teacher=mistake:0.1"),
    "mistakes-30": Side("30 % mistakes", options="teacher=mistake:0.3"),
    "networks": Side("networks", options=_NETWORK, all_budgets=True),
    "networks-10": Side("networks, 10 % mistakes", options=f"{_NETWORK} teacher=mistake:0.1"),
    "networks-30": Side("networks, 30 % mistakes", options=f"{_NETWORK} teacher=mistake:0.3"),
    "pretraining": Side("networks, pretraining labels alone", options=_NETWORK),
    "coin": Side("networks, coin flips", options=f"{_NETWORK} teacher=mistake:0.5"),
    "uniform": Side(
        "networks, any pairs, at random", options=f"{_NETWORK} queries.selection=random queries.recency=inf"
    ),
    "paper": Side("the paper's setting", options="preset=paper"),
    "plain": Side("numbers alone read", options=_PLAIN, all_budgets=True, tasks=("Reacher",)),
    "plain-10": Side(
        "numbers alone, 10 % mistakes", options=f"{_PLAIN} teacher=mistake:0.1", tasks=("Reacher",)
    ),
    "even": Side("squares, logarithms, strength 3", options=_EVEN, all_budgets=True),
    "even-10": Side("the same, 10 % mistakes", options=f"{_EVEN} teacher=mistake:0.1"),
    "action": Side("states, actions read", options=_ACTION, all_budgets=True),
    "action-10": Side("states, actions, 10 % mistakes", options=f"{_ACTION} teacher=mistake:0.1"),
    "diverse": Side("diverse pairs", options=f"{_NETWORK} queries.diversity=5", tasks=_SHORT_TASKS),
    "crops": Side("crops of segments", options="reward.shortest_crop=0.5", tasks=_SHORT_TASKS),
    "converged": Side("refits to convergence", options="reward.converge", tasks=_SHORT_TASKS),
    "bounded": Side(
        "bounded confidence", options=f"{_NETWORK} reward.label_smoothing=0.05", tasks=_SHORT_TASKS
    ),
    "value-refit": Side("critic refitted first", options=f"{_NETWORK} value_refit=5", tasks=_SHORT_TASKS),
    "recent": Side(
        "recent pairs, at random", options=f"{_NETWORK} queries.selection=random", tasks=_SHORT_TASKS
    ),
    "active": Side("active pairs of any age", options=f"{_NETWORK} queries.recency=inf", tasks=_SHORT_TASKS),
    **{
        name: Side(title, options=options, tasks=_SHORTEST_TASKS)
        for name, title, options in (
            ("logit", "disagreement on logits", f"{_NETWORK} queries.uncertainty=logit"),
            ("label", "disagreement on labels", f"{_NETWORK} queries.uncertainty=label"),
            ("oversampling", "3 times as many segments", f"{_NETWORK} queries.oversampling=3"),
            ("exploration", "half of them explored", f"{_NETWORK} queries.exploration_frac=0.5"),
            ("constant", "constant rate of labels", f"{_NETWORK} schedule=constant"),
            ("hyperbolic", "hyperbolic rate of labels", f"{_NETWORK} schedule=hyperbolic"),
            ("dropout", "dropout of a fifth", "reward.dropout=0.2"),
            ("adapted", "adapted weight decay", "reward.adapt"),
            ("l2", "adapted l2", "reward.regularization=l2 reward.adapt"),
            ("l1", "adapted l1", "reward.regularization=l1 reward.adapt"),
            ("first-epochs", "200 epochs at first", "reward.initial_epochs=200"),
            ("running", "running normalization", f"{_NETWORK} reward.normalization=running"),
            ("raw", "no normalization", f"{_NETWORK} reward.normalization=none"),
            ("bonus", "a standard deviation above the mean", f"{_NETWORK} reward.uncertainty_bonus=1"),
        )
    },
    "imitation": Side("imitation, oracle", all_budgets=True, tasks=("Pendulum",)),
}


@dataclass(frozen=True)
class Point:
    """One run; its fields identify a line of the results file.

    Attributes:
        labels: label budget, 0 for sides that aren't taught.
        options: ``teach`` options of a variant; empty for the sides in ``SIDES``.
    """

    task: str
    side: str
    labels: int
    steps: int
    seed: int
    options: str = ""

    @property
    def is_ours(self) -> bool:
        """True if the run is made by ``teach``."""
        return self.side not in ("random", "imitation")

    def command(self) -> str:
        """Return a command that repeats this run and appends its result to a different file."""
        words = ["--task", self.task, "--steps", str(self.steps), "--seeds", str(self.seed)]
        if self.labels:
            words += ["--labels", str(self.labels)]
        words += ["--variant", f"{self.side}: {self.options}"] if self.options else ["--side", self.side]
        if self.side == "imitation":
            words += ["--imitation", "PYTHON"]
        return shlex.join(["python", "-m", "benchmarks.teaching", *words, "--results", "again.jsonl"])

    def config(self, runs_dir: str) -> TeachConfig:
        """Return the settings of a ``teach`` run.

        Raises:
            ConfigError: the side's options are invalid.
        """
        words = ["-e", TASKS[self.task].env_id, "-n", "run", "-s", str(self.seed)]
        words += ["-t", str(self.steps), "--runs_dir", runs_dir, "-V"]
        if self.side == "rl":
            return parse_arguments([*words, "-p", "rl"]).config
        labels = self.labels // 4 if self.side == "pretraining" else self.labels
        words += ["-p", "synth", "-l", str(labels)]
        if self.side == "pretraining":
            words += ["-L", str(labels)]
        options = self.options or SIDES[self.side].options
        return parse_arguments([*words, *_as_arguments(options)]).config


def _as_arguments(options: str) -> list[str]:
    """Convert ``a.b=1 c`` to ``--a.b=1 --c``."""
    return [f"--{option}" for option in shlex.split(options)]


def parse_variant(text: str) -> tuple[str, Side]:
    """Parse a variant such as ``five: reward.members=5`` into its name and side."""
    name, separator, options = text.partition(":")
    if not separator or not name.strip() or not options.strip() or name.strip() in SIDES:
        raise ValueError(f"a variant must be 'a new name: option=value ...', not {text!r}")
    return name.strip(), Side(name.strip(), options=" ".join(options.split()))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selection of runs; empty or None fields use the task's values."""

    tasks: Sequence[str]
    sides: Mapping[str, Side]
    labels: Sequence[int] = ()
    seeds: Sequence[int] = ()
    steps: int | None = None

    def points(self) -> Iterator[Point]:
        """Yield the selected runs, ordered by seed."""
        last = max([*self.seeds, *(TASKS[task].seeds for task in self.tasks)])
        for seed, task, (name, side) in itertools.product(range(1, last + 1), self.tasks, self.sides.items()):
            if seed not in (self.seeds or range(1, TASKS[task].seeds + 1)):
                continue
            if side.tasks is not None and task not in side.tasks:
                continue
            for labels in self._budgets(TASKS[task], side):
                variant = "" if name in SIDES else side.options
                yield Point(task, name, labels, self.steps or TASKS[task].steps, seed, variant)

    def _budgets(self, task: Task, side: Side) -> Sequence[int]:
        if not side.taught:
            return (0,)
        return self.labels or (task.budgets if side.all_budgets else (task.standard,))


def point_of(result: Mapping[str, Any]) -> Point:
    """Return the run that produced a line of the results file."""
    return Point(**{name: result[name] for name in Point.__dataclass_fields__})


def line_of(point: Point, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's line of the results file."""
    return {**asdict(point), **outcome, "command": point.command()}
