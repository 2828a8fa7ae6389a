"""Benchmark of the site's storage: size of its rows, and cost of the requests that trainers send.

``python -m benchmarks.row_sizes`` takes a few minutes. It fills PostgreSQL with 50,000 comparisons and
150,000 labels, with indexes that grow along as on a real site. Then trainers send the learning curves of
whole runs over HTTP to the site. The values that a trainer reports per round come from a short run.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import numpy as np
import psycopg
from rich.console import Console

from benchmarks.load_servers import Machine, Side, cpu_seconds
from stack.process import ROOT
from teacher.labeling.client import ExperimentSettings, FeedbackClient, Point
from teacher.reporting.videos import CLIPS_PER_RUN
from teacher.settings.config import TeachConfig
from teacher.training.builder import open_run
from teacher.training.loop import Round, train

TABLES = ("comparison", "lease", "label", "decision", "trainingpoint", "episode")
EPISODES = 10_000
ROUND_STEPS = 2048  # environment steps per round with PPO's defaults
_TRIAL_ROUNDS = 20
_SIZES = """
    SELECT t.relname, i.indexrelid::regclass::text, pg_relation_size(i.indexrelid), pg_table_size(t.oid)
    FROM pg_class t JOIN pg_index i ON i.indrelid = t.oid WHERE t.relname = %s ORDER BY 3 DESC"""


def values_of_rounds(folder: Path) -> list[dict[str, float]]:
    """Return the values that a short run reports per round, without the few rounds that fit a predictor."""
    config = TeachConfig(
        env_id="ShortHopper-v1", predictor="synth", name="curves", n_labels=100, pretrain_iters=100,
        num_timesteps=_TRIAL_ROUNDS * ROUND_STEPS, no_videos=True, runs_dir=str(folder),
    )  # fmt: skip
    rounds: list[dict[str, float]] = []

    def keep(each: Round) -> None:
        if "predictor/loss" not in each.values:
            rounds.append({tag: value for tag, value in each.values.items() if np.isfinite(value)})

    with open_run(config, Console(quiet=True)) as made:
        train(made, on_round=keep)
    return rounds


class Meter:
    """Prints the CPU time that requests cost the web server and PostgreSQL."""

    def __init__(self, machine: Machine, side: Side) -> None:
        self._pids = side.pid, machine.postgres

    @contextmanager
    def measure(self, what: str, times: int) -> Iterator[None]:
        """Print the CPU time per request of the ``with`` block, which makes ``times`` requests."""
        before = [cpu_seconds(pid) for pid in self._pids]
        yield
        web, database = (
            1000 * (cpu_seconds(pid) - then) / times for pid, then in zip(self._pids, before, strict=True)
        )
        print(f"{what}: {web + database:.1f} ms of CPU, of which the database {database:.1f}")


class Trainer:
    """Simulated trainer that has registered a new experiment on the site."""

    def __init__(self, side: Side, token: str, number: int) -> None:
        self._client, self._name = FeedbackClient(side.dialect.url, token), f"ShortHopper-v1-run-{number}"
        self._client.put_experiment(
            ExperimentSettings(
                name=self._name, run_id=uuid4(), env_id="ShortHopper-v1", prompt="Which is better?",
                n_labels=1400, fps=40, has_true_reward=True,
            )
        )  # fmt: skip

    def poll(self, times: int) -> None:
        """Poll for decisions, of which there are none."""
        for _ in range(times):
            self._client.decisions(self._name, 0)

    def send(self, points: Sequence[Point], together: int) -> None:
        """Send learning-curve points, ``together`` per request."""
        for first in range(0, len(points), together):
            self._client.post_points(self._name, points[first : first + together], None)


def token_of(side: Side) -> str:
    """Create an API token for the experiment owner that ``load_rows`` created."""
    command = [sys.executable, "manage.py", "create_token", "ada"]
    made = subprocess.run(
        command, env=dict(side.environment), cwd=ROOT, capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


def measure_requests(
    machine: Machine, side: Side, rounds: Sequence[dict[str, float]], options: argparse.Namespace
) -> None:
    """Measure the CPU time of empty polls and of sending whole learning curves."""
    token, meter = token_of(side), Meter(machine, side)
    trainers = [Trainer(side, token, number) for number in range(options.runs)]
    points = [Point(number * ROUND_STEPS, rounds[number % len(rounds)]) for number in range(options.rounds)]

    def all_at_once(act: Callable[[Trainer], None]) -> None:
        with ThreadPoolExecutor(len(trainers)) as pool:
            list(pool.map(act, trainers))

    all_at_once(lambda trainer: trainer.poll(10))  # opens connections
    with meter.measure("a poll that brings nothing", len(trainers) * options.polls):
        all_at_once(lambda trainer: trainer.poll(options.polls))
    requests = len(trainers) * math.ceil(options.rounds / options.together)
    with meter.measure(f"points of {options.together} rounds in a request", requests):
        all_at_once(lambda trainer: trainer.send(points, options.together))


def fill_episodes(connection: psycopg.Connection) -> None:
    """Insert ``EPISODES`` episode videos as rows, without files."""
    connection.execute(
        "INSERT INTO feedback_episode (experiment_id, step, key) SELECT (SELECT min(id) FROM"
        " feedback_experiment), i, 'ShortHopper-v1-run-1/episodes/' || i || '.mp4'"
        " FROM generate_series(250000, 250000 + %s - 1) g(i)",
        [EPISODES],
    )


def print_sizes(connection: psycopg.Connection) -> dict[str, float]:
    """Print bytes per row of each table and its indexes; return the total by table."""
    print("| table | rows | bytes a row | rows alone | indexes |", "|---|---|---|---|---|", sep="\n")
    sums = {}
    for name in TABLES:
        table = f"feedback_{name}"
        (count,) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() or (0,)  # noqa: S608
        found = connection.execute(_SIZES, [table]).fetchall()
        rows = found[0][3] / count
        indexes = {str(index).removeprefix(f"{table}_"): size / count for _, index, size, _ in found}
        sums[name] = rows + sum(indexes.values())
        told = ", ".join(f"{index} {size:.0f}" for index, size in indexes.items())
        print(f"| {name} | {count:,} | {sums[name]:.0f} | {rows:.0f} | {told} |")
    return sums


def print_totals(sums: dict[str, float], rounds: Sequence[dict[str, float]]) -> None:
    """Print the storage for a label, for a run of the default length, and for ten thousand runs."""
    tags = statistics.mean(map(len, rounds))
    all_rounds = TeachConfig.num_timesteps // ROUND_STEPS
    points = tags * all_rounds
    label = sum(sums[name] for name in TABLES[:4])
    print(f"a label with its lease, decision and comparison: {label:.0f} bytes")
    for runs in (1, 10_000):
        size, films = runs * points * sums["trainingpoint"], runs * CLIPS_PER_RUN
        print(
            f"{runs:,} runs of {all_rounds:,} rounds, {tags:.1f} values each: {runs * points:,.0f} points, "
            f"{size / 1e6:,.1f} MB; {films:,} episodes, {films * sums['episode'] / 1e6:,.3f} MB"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill the database, measure requests, and print row sizes and totals."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--comparisons", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=8, help="number of concurrent trainers")
    parser.add_argument("--rounds", type=int, default=600, help="rounds per trainer")
    parser.add_argument("--together", type=int, default=3, help="rounds per request")
    parser.add_argument("--polls", type=int, default=100, help="polls per trainer")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder) / "machine") as machine:
        rounds = values_of_rounds(Path(folder))
        side = machine.teacher("rows", str(options.comparisons), "20", "--history", "--grown")
        measure_requests(machine, side, rounds, options)
        with psycopg.connect(side.environment["DATABASE_URL"], autocommit=True) as connection:
            fill_episodes(connection)
            sums = print_sizes(connection)
    print_totals(sums, rounds)


if __name__ == "__main__":
    main()
