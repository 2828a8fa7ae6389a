"""Turns of the load benchmark: one side under load for a fixed time, with its cost in CPU and memory."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load_client import Tally, label, step_by_step
from benchmarks.load_servers import Machine, Side, cpu_seconds, memory_mb

# Matches logged statements, except those that begin or end transactions.
_STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]+): (?!BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)")
_TRIALS = 5


@dataclass(frozen=True)
class Turn:
    """Measurements of one turn.

    Attributes:
        side: name of the site.
        labelers: number of labelers.
        tally: what the labelers measured.
        site_cpu_s: CPU seconds of the web server.
        database_cpu_s: CPU seconds of PostgreSQL.
        memory_mb: memory of the web server at the end, in MB.
    """

    side: str
    labelers: int
    tally: Tally
    site_cpu_s: float
    database_cpu_s: float
    memory_mb: float

    @property
    def labels_per_s(self) -> float:
        """Saved answers per second."""
        return self.tally.labels / self.tally.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of web server and database per label."""
        return 1000 * (self.site_cpu_s + self.database_cpu_s) / max(1, self.tally.labels)

    def figures(self) -> Mapping[str, float]:
        """Return all reported figures by their name in the table."""
        tally = self.tally
        return {
            "labels/s": self.labels_per_s,
            "next p50, ms": 1000 * quantile(tally.next_s, 0.5),
            "next p95, ms": 1000 * quantile(tally.next_s, 0.95),
            "save p50, ms": 1000 * quantile(tally.save_s, 0.5),
            "save p95, ms": 1000 * quantile(tally.save_s, 0.95),
            "CPU, ms a label": self.cpu_ms,
            "of it the database's": 1000 * self.database_cpu_s / max(1, tally.labels),
            "client's CPU, ms a label": 1000 * tally.client_cpu_s / max(1, tally.labels),
            "cores it got": (self.site_cpu_s + self.database_cpu_s + tally.client_cpu_s) / tally.seconds,
            "memory, MB": self.memory_mb,
        }


def take_turn(
    machine: Machine,
    side: Side,
    labelers: int,
    seconds: float,
    enough: Callable[[Tally], bool] = lambda tally: False,
) -> Turn:
    """Put a side under load from ``labelers`` labelers for ``seconds``, or until ``enough`` returns True."""
    before = cpu_seconds(side.pid), cpu_seconds(machine.postgres)
    tally = label(side.dialect, side.cookies[:labelers], seconds, enough)
    site, database = cpu_seconds(side.pid) - before[0], cpu_seconds(machine.postgres) - before[1]
    return Turn(side.name, labelers, tally, site, database, memory_mb(side.pid))


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of ``values`` with ``share`` from 0 to 1; 0 if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def statements(machine: Machine, side: Side) -> Mapping[str, float]:
    """Return the median number of SQL statements per ``next`` and per ``save``, from PostgreSQL's log."""
    counts: dict[str, list[int]] = {"next": [], "save": []}
    with machine.postgres_log.open(errors="replace") as log, machine.logging_statements():
        for step in step_by_step(side.dialect, side.cookies[0], _TRIALS):
            counts[step].append(len(_STATEMENT.findall(log.read())))
    return {step: statistics.median(numbers[1:]) for step, numbers in counts.items()}  # without the first
