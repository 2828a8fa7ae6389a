"""Fault-injection test of the full stack: checks that no label is lost, doubled or inverted.

    python -m benchmarks.chaos --kills 1000     run until 1000 kills in total; continues earlier results
    python -m benchmarks.chaos --show           print a summary of benchmarks/chaos.jsonl

Each batch runs an experiment with scripted labelers on the full stack: PostgreSQL, Redis, S3, two web
servers, chores, a render worker and a trainer. At random times, drawn from the batch's seed, it injects a
fault. Either a program is killed (SIGKILL), the connection to a server is cut or slowed for a few seconds, or
the media store's disk is full for a few seconds. Or a new version of the site is rolled out: a migration
runs, then both web servers, chores, the render worker and the trainer restart one by one. The clocks of the
trainer, labelers and render worker run ten minutes fast. At the end of the batch, the labelers' log of
acknowledged answers, the site's database and the trainer's ledger must agree: every answer is stored exactly
once, every decision has the right sign, and no comparison is stuck.

The full disk needs root (it is a tmpfs) and the fast clocks need a C compiler. If either is missing, that
fault is skipped with a message.
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.chaos_link import Link
from benchmarks.chaos_upgrade import Versions, roll
from benchmarks.results import append, load
from stack.experiment import Experiment, ExperimentOptions
from stack.folder import Folder
from stack.process import Process, Service, StackError, State
from stack.site import Site
from stack.supervisor import Display, Supervisor

RESULTS = Path(__file__).with_suffix(".jsonl")
PROGRAMS = ("postgres", "redis", "s3", "web-1", "web-2", "chores", "render-1", "trainer", "bots")
LINKS = ("postgres", "redis", "s3", "site")
ROLLED = ("web-1", "web-2", "chores", "render-1", "trainer")  # restart order of a rollout
EXPERIMENT = ExperimentOptions(env_id="Reacher-v1", labels=300, pretrain_labels=60, steps=60_000, bots=5)
FAST_SECONDS = 600
FAULTS = ("lost", "doubled", "inverted", "unknown", "stuck", "gaps")
_DELAY_SECONDS = 0.2  # added to each chunk on a slow link
_STORE_MB = 64
_FILLER = "filler"
_ROLL = "roll site"
_MAX_FAILURES = 20  # in a row: a program may be killed after each restart, or its servers may be down


@dataclass(frozen=True)
class Fault:
    """A fault to inject.

    Attributes:
        kind: ``kill`` a program, ``cut`` or ``slow`` a link, ``fill`` the store's disk, or ``roll`` out a
            new version of the site.
        target: name of the program, link or server.
        pause: seconds to wait after the previous fault.
        lasts: seconds until a cut, slow or fill fault is undone.
    """

    kind: str
    target: str
    pause: float
    lasts: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


def drawn_faults(seed: int, count: int, every: float) -> Iterator[Fault]:
    """Yield ``count`` random faults, 70 % of them kills; ``every`` is the mean pause in seconds."""
    rng = random.Random(seed)
    for _ in range(count):
        pause = rng.expovariate(1 / every)
        if rng.random() < 0.7:
            yield Fault("kill", rng.choice(PROGRAMS), pause)
        else:
            kind, target = rng.choice(
                [*((kind, to) for kind in ("cut", "slow") for to in LINKS), ("fill", "s3"), ("roll", "site")]
            )
            yield Fault(kind, target, pause, rng.uniform(1.0, 6.0))


class Store:
    """Context manager that mounts a small tmpfs as the media store's disk, so that it can be filled.

    Attributes:
        is_small: True if the mount succeeded; it needs root.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.is_small = False

    def __enter__(self) -> "Store":
        self._folder.mkdir(mode=0o700, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_STORE_MB}m", "tmpfs", str(self._folder)]
        self.is_small = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_small:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    def fill(self) -> None:
        """Fill the disk completely."""
        with contextlib.suppress(OSError), (self._folder / _FILLER).open("wb", buffering=0) as file:
            for _ in range(_STORE_MB * 256):
                file.write(bytes(4096))

    def empty(self) -> None:
        """Free the space taken by ``fill``."""
        (self._folder / _FILLER).unlink(missing_ok=True)


class FaultInjector(Supervisor):
    """Supervisor that injects faults into the programs it runs.

    Attributes:
        given: number of injections of each fault; a rollout counts when it is complete.
    """

    def __init__(self, logs: Path, keep_open: int, display: Display) -> None:
        super().__init__(logs, keep_open, display)
        self.given: Counter[str] = Counter()
        self._faults: Iterator[Fault] = iter(())
        self._links: Mapping[str, Link] = {}
        self._repairs: list[tuple[float, Callable[[], None]]] = []
        self._roll: Iterator[None] | None = None
        self._wait_for_next()

    def begin(
        self,
        faults: Iterator[Fault],
        links: Mapping[str, Link],
        store: Store,
        roll: Callable[[], Iterator[None]],
    ) -> None:
        """Start injecting ``faults``; each call of ``look`` injects the next one if it is due."""
        self._faults, self._links, self._store, self._new_roll = faults, links, store, roll
        self._wait_for_next()

    def start(self, *services: Service) -> list[Process]:
        """Start programs and wait until all are ready, allowing more failures because of the kills."""
        return super().start(
            *(
                each if each.max_failures == 1 else replace(each, max_failures=_MAX_FAILURES)
                for each in services
            )
        )

    def process(self, service: Service) -> Process:
        """Return a process for a service without starting or supervising it."""
        return Process(service, self._logs, [self._keep_open])

    def look(self) -> None:
        """Check all programs, undo the faults that have lasted long enough, and inject a fault if due."""
        super().look()
        is_over = any(each.service.name == "trainer" and each.state is State.DONE for each in self.processes)
        now = float("inf") if is_over else time.monotonic()
        for repair in [repair for at, repair in self._repairs if at <= now]:
            repair()
        self._repairs = [(at, repair) for at, repair in self._repairs if at > now]
        if self._roll is not None and not is_over:
            self._continue_roll(self._roll)
        if self._next is not None and not is_over and now >= self._due and self._inject(self._next):
            self._display.say(f"chaos: {self._next}")
            if self._next.kind != "roll":
                self.given[str(self._next)] += 1
            self._wait_for_next()

    def _continue_roll(self, steps: Iterator[None]) -> None:
        try:
            next(steps)
        except StopIteration:
            self._roll = None
            self.given[_ROLL] += 1
            self._display.say("chaos: the new version is fully rolled out")

    def _wait_for_next(self) -> None:
        self._next = next(self._faults, None)
        self._due = time.monotonic() + (self._next.pause if self._next else 0.0)

    def _inject(self, fault: Fault) -> bool:
        """Inject a fault; return False if its program isn't running yet or a rollout is still in progress."""
        match fault.kind:
            case "kill":
                return self._kill(fault.target)
            case "roll":
                if self._roll is not None:
                    return False
                self._roll = self._new_roll()
                return True
            case "cut":
                self._links[fault.target].cut()
            case "slow":
                self._links[fault.target].slow(_DELAY_SECONDS)
            case _:
                self._store.fill()
        repair = self._store.empty if fault.kind == "fill" else self._links[fault.target].restore
        self._repairs.append((time.monotonic() + fault.lasts, repair))
        return True

    def _kill(self, name: str) -> bool:
        for process in self.processes:
            if process.service.name == name and process.state is State.READY and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, 9)
                return True
        return False


@dataclass(frozen=True)
class FastSite(Site):
    """Site whose trainer, labelers and render worker run with a fast clock (see ``FAST_SECONDS``)."""

    def trainer_environment(self) -> dict[str, str]:
        """Return the trainer's environment variables, including those that make its clock fast."""
        return super().trainer_environment() | fast_clock(self.folder.path)


def fast_clock(folder: Path) -> dict[str, str]:
    """Compile the clock library if needed; return its environment variables, or {} without a C compiler."""
    library, compiler = folder / "fast_clock.so", shutil.which("cc")
    if not library.exists() and compiler is not None:
        source = Path(__file__).with_name("fast_clock.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library), "FAST_CLOCK": str(FAST_SECONDS)} if library.exists() else {}


def run_batch(
    folder: Folder, options: ExperimentOptions, faults: Iterator[Fault], console: Console
) -> dict[str, Any]:
    """Run an experiment under faults; return the injected faults and the audit of its labels."""
    with contextlib.ExitStack() as parts:
        held = parts.enter_context(folder.held())
        display = parts.enter_context(Display(console))
        ports, _ = folder.ports()
        # Programs connect to the links' ports; the servers listen on higher ports. There are two web servers.
        behind = {name: [10_000 + ports[name]] for name in LINKS}
        behind["site"].append(10_100 + ports["site"])
        links = {name: parts.enter_context(Link(ports[name], *behind[name])) for name in LINKS}
        versions = Versions(folder.path / "versions")
        store = parts.enter_context(Store(folder.path / "s3"))
        servers = Site.of(folder, {name: 10_000 + ports[name] for name in ports})
        site = FastSite.of(folder, ports)
        injector = parts.enter_context(FaultInjector(folder.logs, held, display))
        for server in (servers.postgres, servers.redis, servers.s3):
            injector.start(server.service())
        injector.start(replace(site.set_up(), folder=versions.current))
        injector.start(
            *(_web(site, name, port, versions) for name, port in zip(ROLLED, behind["site"], strict=False)),
            replace(site.chores(), folder=versions.current),
            *site.render_workers(1),
        )
        for missing, has in (("a small disk", store.is_small), ("a fast clock", fast_clock(folder.path))):
            if not has:
                display.say(f"chaos: {missing} isn't available, so it is skipped")
        fillable = (fault for fault in faults if store.is_small or fault.kind != "fill")
        migrating = replace(site.set_up(), max_failures=_MAX_FAILURES, environment=_impatient(site))

        def new_roll() -> Iterator[None]:
            def set_up(version: Path) -> Process:
                return injector.process(replace(migrating, folder=version))

            return roll(versions, injector.processes, set_up, ROLLED)

        injector.begin(fillable, links, store, new_roll)
        audit = Experiment(site, options).run(injector, display)
        new_labels = versions.new_labels(servers.postgres.url)
    console.print(audit.table())
    return {
        "blows": dict(injector.given),
        "clock": FAST_SECONDS if fast_clock(folder.path) else 0,
        "new_labels": new_labels,
        "holds": audit.holds,
        **asdict(audit),
    }


def _web(site: Site, name: str, port: int, versions: Versions) -> Service:
    """Return a one-process web server of the current version on a port that only its link uses."""
    web, address = site.web(), f"127.0.0.1:{port}"
    command = list(web.command())
    command[command.index("--bind") + 1] = address
    return replace(
        web,
        name=name,
        command=lambda: command,
        environment={**web.environment, "WEB_CONCURRENCY": "1"},
        is_ready=lambda: site.is_ready(f"http://{address}"),
        address=f"http://{address}",
        folder=versions.current,
    )


def _impatient(site: Site) -> dict[str, str]:
    """Return environment variables for a migration with a 5 s lock timeout, as in docs/deployment.md."""
    return {**site.set_up().environment, "PGOPTIONS": "-c lock_timeout=5s"}


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """Summarize all batches: injected faults, label counts and errors found."""
    injected: Counter[str] = Counter()
    for result in results:
        injected.update(result["blows"])
    kills = kills_of(results)
    total = {name: sum(result[name] for result in results) for name in ("asked", "acknowledged", "late")}
    faults = {name: sum(result[name] for result in results) for name in FAULTS}
    return "\n".join(
        [
            f"{len(results)} batches, {kills} kills, {sum(injected.values()) - kills} other faults",
            ", ".join(f"{fault} {count}" for fault, count in sorted(injected.items())),
            ", ".join(f"{name} {count}" for name, count in (total | faults).items()),
        ]
    )


def kills_of(results: Sequence[Mapping[str, Any]]) -> int:
    """Return the total number of kills."""
    return sum(
        count for result in results for fault, count in result["blows"].items() if fault.startswith("kill ")
    )


def main() -> int:
    """Run batches until there are enough kills, then print the summary; exit status 1 if an audit failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000, help="total number, including earlier calls")
    parser.add_argument("--blows", type=int, default=60, help="number of faults per batch")
    parser.add_argument("--every", type=float, default=2.0, help="mean seconds between two faults")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the first batch; vary it for parallel calls"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--dir", type=Path, default=Path("state/chaos"), help="the stack's folder")
    parser.add_argument(
        "--show", action="store_true", help="print the stored results without running anything"
    )
    given = parser.parse_args()
    results, console = load(given.results), Console(highlight=False)
    given.dir.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.chdir(given.dir):
            while not given.show and kills_of(results) < given.kills:
                seed = max([given.seed - 1, *(result["seed"] for result in results)]) + 1
                faults = drawn_faults(seed, given.blows, given.every)
                result = {"seed": seed, **run_batch(Folder(Path("stack")), EXPERIMENT, faults, console)}
                append(given.results, result)
                results.append(result)
                if not result["holds"]:
                    break  # keep the run and the logs for debugging
                shutil.rmtree("runs")
    except StackError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    print(report(results))
    return 0 if all(result["holds"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
