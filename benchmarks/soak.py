"""Soak test: checks for growing memory or open files during an hour at a steady load.

    python -m benchmarks.soak --minutes 60      run the load and write benchmarks/soak.jsonl
    python -m benchmarks.soak --show            print the table and draw docs/pictures/soak.png

On the full stack (PostgreSQL, Redis, S3, web server, chores, render worker), forty labelers each label a pair
every two seconds: 20 labels per second, the maximum that benchmarks/site_load.py claims. At the same time, a
trainer runs a whole experiment with one scripted labeler, who takes five seconds per pair, on clips from the
render worker. Every twenty seconds, each process's private memory (RssAnon) and number of open files are
recorded. PostgreSQL logs slow statements. Needs Linux's /proc.
"""

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
from rich.console import Console

from benchmarks.load_client import Tally, label
from benchmarks.load_rows import EXPERIMENT
from benchmarks.load_servers import Teacher, cpu_seconds, run
from benchmarks.load_turns import quantile
from benchmarks.results import append, load
from benchmarks.soak_report import draw, report
from stack.experiment import Experiment, ExperimentOptions
from stack.folder import Folder
from stack.process import ROOT, StackError
from stack.site import Site
from stack.supervisor import Display, Supervisor

RESULTS = Path(__file__).with_suffix(".jsonl")
PICTURE = ROOT / "docs" / "pictures" / "soak.png"
LABELERS, PACE_SECONDS = 40, 2.0
TRAINER_PACE_SECONDS = 5.0
STEPS_PER_LABEL = 2000
SLOW_MS = 200
EVERY_SECONDS = 20.0
_SPARE = 1.2  # factor by which there are more pairs than the labelers can label
_FINISH = f"""
from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.services.experiments import finish
finish(Experiment.objects.exclude(name={EXPERIMENT!r}))
"""
_SLOW = re.compile(r"(\d\d:\d\d):\S+ UTC \[\d+\] LOG:  duration: ([\d.]+) ms +(.*)")


class Watch(Supervisor):
    """Supervisor that records the memory and open files of the programs it runs.

    Attributes:
        used: CPU seconds by program at the end of the test; empty until then.
    """

    def __init__(self, logs: Path, keep_open: int, display: Display) -> None:
        super().__init__(logs, keep_open, display)
        self._results: Path | None = None
        self.used: dict[str, float] = {}

    def begin(self, results: Path, seconds: float, end: Callable[[], None]) -> None:
        """Record sizes to ``results`` for ``seconds``, then call ``end``."""
        self._results, self._began, self._seconds, self._end = results, time.monotonic(), seconds, end
        self._due = self._began + EVERY_SECONDS

    @property
    def left(self) -> float:
        """Seconds until the end of the test."""
        return self._began + self._seconds - time.monotonic()

    def look(self) -> None:
        """Check all programs, and record their sizes if due."""
        super().look()
        if self._results is None:
            return
        now = time.monotonic()
        if self.left < 0:
            self._results = None
            self.used = self.cpu_seconds()
            self._end()
        elif now >= self._due:
            self._due += EVERY_SECONDS
            append(self._results, {"seconds": round(now - self._began, 1), "programs": self.sizes()})

    def sizes(self) -> dict[str, list[list[int]]]:
        """Return by program a list of its processes, each as [PID, memory in kB, open files]."""
        found = {}
        for process in self.processes:
            if process.pid is not None:
                found[process.service.name] = [list(size) for size in sizes_of(process.pid)]
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of each running program."""
        used = {}
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid is not None:
                    used[process.service.name] = cpu_seconds(process.pid)
        return used


def sizes_of(pid: int) -> list[tuple[int, int, int]]:
    """Return (PID, memory in kB, open files) of a process and each of its descendants."""
    sizes = []
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                folder = Path(f"/proc/{process.pid}")
                status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
                if "RssAnon" in status:  # missing if the process has ended
                    memory = int(status["RssAnon"].split()[0])
                    sizes.append((process.pid, memory, len(list((folder / "fd").iterdir()))))
    return sizes


class Labelers(threading.Thread):
    """Context manager that runs labelers at a steady pace in a thread and stops them on exit."""

    def __init__(self, url: str, cookies: Sequence[str], seconds: float) -> None:
        super().__init__(name="labelers")
        self.tally = Tally()
        self._work = url, cookies, seconds
        self._is_over = threading.Event()

    def run(self) -> None:
        """Run all labelers until the time is over or the context ends."""
        url, cookies, seconds = self._work
        self.tally = label(Teacher(url), cookies, seconds, lambda _: self._is_over.is_set(), PACE_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


def soak(folder: Folder, seconds: float, results: Path, console: Console) -> None:
    """Run the whole stack under load for ``seconds`` and write the measurements to ``results``."""
    with contextlib.ExitStack() as parts:
        held = parts.enter_context(folder.held())
        display = parts.enter_context(Display(console))
        ports, _ = folder.ports()
        site = Site.of(folder, ports)
        parts.callback(site.postgres.remove)
        watch = parts.enter_context(Watch(folder.logs, held, display))
        cookies = _start(site, watch, seconds)
        log = parts.enter_context((folder.logs / "postgres.log").open(errors="replace"))
        log.seek(0, 2)
        results.unlink(missing_ok=True)
        append(results, {"minutes": seconds / 60, "labelers": LABELERS, "pace": PACE_SECONDS})
        before, began = watch.cpu_seconds(), time.monotonic()
        watch.begin(results, seconds, lambda: _finish(site))
        with Labelers(site.url, cookies, seconds) as labelers:
            audit = Experiment(site, _trained(seconds)).run(watch, display)
            while not watch.used:
                watch.look()
            labelers.join()
        took = time.monotonic() - began
        ended = {
            "stored": _stored(site.postgres.url),
            "cores": {
                name: round((cpu - before.get(name, 0.0)) / seconds, 3) for name, cpu in watch.used.items()
            },
            "slow_ms": SLOW_MS,
            **slow_statements(log.read()),
            "trainer": asdict(audit),
            "seconds": round(took, 1),
        }
        append(results, _met_with(labelers.tally) | ended)


def _start(site: Site, watch: Watch, seconds: float) -> list[str]:
    """Start everything except trainer and labelers, and return the labelers' cookies."""
    for server in (site.postgres, site.redis, site.s3):
        watch.start(server.service())
    set_up = site.set_up()
    watch.start(set_up)
    pairs = round(_SPARE * LABELERS * seconds / PACE_SECONDS) + LABELERS
    fill = [sys.executable, "-m", "benchmarks.load_rows", "fill", str(pairs), str(LABELERS), "1"]
    cookies: list[str] = run(fill, {**set_up.environment, "PYTHONPATH": str(ROOT)})
    watch.start(site.web(), site.chores(), *site.render_workers(1))
    with psycopg.connect(site.postgres.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET log_min_duration_statement = {SLOW_MS}".encode())
        connection.execute("SELECT pg_reload_conf()")
    return cookies


def slow_statements(log: str) -> dict[str, Any]:
    """Summarize the slow statements in PostgreSQL's log.

    Returns:
        ``slow``: a list of [count, longest time in milliseconds, text] per statement; and ``slow_minutes``:
        the number of slow statements by minute of the day.
    """
    times: dict[str, list[float]] = {}
    minutes: Counter[str] = Counter()
    for minute, ms, text in _SLOW.findall(log):
        times.setdefault(text.split(": ", 1)[-1][:200], []).append(float(ms))
        minutes[minute] += 1
    found = sorted(([len(of), max(of), text] for text, of in times.items()), reverse=True)
    return {"slow": found, "slow_minutes": dict(minutes)}


def _finish(site: Site) -> None:
    """Finish the trainer's experiment on the site, so that the trainer ends with the labels it has."""
    command = [sys.executable, "manage.py", "shell", "--command", _FINISH]
    environment = dict(site.set_up().environment)
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)


def _trained(seconds: float) -> ExperimentOptions:
    """Return an experiment whose labels take about ``seconds``, or longer on a slow machine."""
    labels = max(8, round(seconds / TRAINER_PACE_SECONDS))
    return ExperimentOptions(
        env_id="Reacher-v1",
        labels=labels,
        pretrain_labels=min(20, labels // 2),
        steps=STEPS_PER_LABEL * labels,
        bots=1,
        seconds=TRAINER_PACE_SECONDS,
    )


def _met_with(tally: Tally) -> dict[str, Any]:
    """Return the labelers' counts, and response times in milliseconds, for the results file."""
    quantiles = {
        f"{name} p{round(100 * share)}": round(1000 * quantile(times, share), 1)
        for name, times in (("next", tally.next_s), ("save", tally.save_s))
        for share in (0.5, 0.95, 0.99)
    }
    return {
        "labels": tally.labels,
        "empty": tally.empty,
        "failures": dict(tally.failures),
        "label_seconds": round(tally.seconds, 1),
        **quantiles,
    }


def _stored(url: str) -> int:
    """Return the number of the labelers' labels in the database."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM feedback_label label JOIN feedback_comparison pair"
            " ON pair.id = label.comparison_id JOIN feedback_experiment experiment"
            " ON experiment.id = pair.experiment_id WHERE experiment.name = %s",
            [EXPERIMENT],
        ).fetchone()
    return int(row[0]) if row else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test unless ``--show`` is given, then print the table and draw the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--dir", type=Path, default=Path("state/soak"), help="new folder for the stack")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument(
        "--show", action="store_true", help="print and plot the stored results without running anything"
    )
    given = parser.parse_args(arguments)
    if not given.show:
        given.dir.mkdir(parents=True, exist_ok=True)
        results = given.results.absolute()
        try:
            with contextlib.chdir(given.dir):
                soak(Folder(Path("stack")), 60 * given.minutes, results, Console(highlight=False))
                shutil.rmtree("runs")
        except StackError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 1
    lines = load(given.results)
    print(report(lines))
    draw(lines, given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
