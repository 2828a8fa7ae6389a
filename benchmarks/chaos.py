"""Is anything lost where everything dies?

    python -m benchmarks.chaos --kills 1000     until so many programs were killed; goes on where it stopped
    python -m benchmarks.chaos --show           what benchmarks/chaos.jsonl holds

Each batch is an experiment with scripted labelers on the full stack: PostgreSQL, Redis, S3, two web servers,
chores, render worker, trainer, labelers. While it goes on, one of these is killed (SIGKILL) at a moment drawn
from the batch's seed, or the link to a server is cut or slowed for some seconds, or the disk of the media
store is full for as long; or a new version of the site comes: its migration is applied, and both web servers,
chores, render worker and trainer are restarted one after the other, while the others go on. The clocks of
trainer, labelers and render worker are ten minutes fast. Afterwards the labelers' own log of acknowledged
answers, the site's database and the trainer's ledger have to agree: every answer is there once, every
decision has the right sign, no comparison is stuck.

The disk needs root (a tmpfs), the clocks a C compiler; what is missing is said and left out.
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
from stack.display import Display
from stack.errors import StackError
from stack.experiment import Experiment, ExperimentOptions
from stack.folder import Folder
from stack.process import Process, Service, State
from stack.site import Site
from stack.supervisor import Supervisor

RESULTS = Path(__file__).with_suffix(".jsonl")
PROGRAMS = ("postgres", "redis", "s3", "web-1", "web-2", "chores", "render-1", "trainer", "bots")
LINKS = ("postgres", "redis", "s3", "site")
ROLLED = ("web-1", "web-2", "chores", "render-1", "trainer")  # in this order
EXPERIMENT = ExperimentOptions(env_id="Reacher-v1", labels=300, pretrain_labels=60, steps=60_000, bots=5)
FAST_SECONDS = 600
FAULTS = ("lost", "doubled", "inverted", "unknown", "stuck", "gaps")
_DELAY_SECONDS = 0.2  # of each chunk on a slow link
_STORE_MB = 64
_FILLER = "filler"
_ROLL = "roll site"
_MAX_FAILURES = 20  # in a row: it may be killed whenever it is back, and what it needs may be down


@dataclass(frozen=True)
class Fault:
    """One thing that happens: ``kill`` a program, ``cut`` or ``slow`` a link, ``fill`` the store's disk, or
    ``roll`` the site on to another version.

    Attributes:
        pause: seconds after the fault before.
        lasts: seconds, for what is mended again.
    """

    kind: str
    target: str
    pause: float
    lasts: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


def drawn_faults(seed: int, count: int, every: float) -> Iterator[Fault]:
    """Seven of ten are kills; ``every`` is the mean of the pauses in seconds."""
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
    """The disk of the media store: a small one of its own, which can be filled up; a context manager."""

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
        """Leave no room."""
        with contextlib.suppress(OSError), (self._folder / _FILLER).open("wb", buffering=0) as file:
            for _ in range(_STORE_MB * 256):
                file.write(bytes(4096))

    def empty(self) -> None:
        """Make room again."""
        (self._folder / _FILLER).unlink(missing_ok=True)


class FaultInjector(Supervisor):
    """A supervisor that gives faults to what it keeps running.

    Attributes:
        given: how often each fault was given, a roll once it is over.
    """

    def __init__(self, logs: Path, keep_open: int, display: Display) -> None:
        super().__init__(logs, keep_open, display)
        self.given: Counter[str] = Counter()
        self._faults: Iterator[Fault] = iter(())
        self._links: Mapping[str, Link] = {}
        self._mends: list[tuple[float, Callable[[], None]]] = []
        self._roll: Iterator[None] | None = None
        self._wait_for_next()

    def begin(
        self,
        faults: Iterator[Fault],
        links: Mapping[str, Link],
        store: Store,
        roll: Callable[[], Iterator[None]],
    ) -> None:
        """Strike from now on, whenever everything is looked at."""
        self._faults, self._links, self._store, self._new_roll = faults, links, store, roll
        self._wait_for_next()

    def start(self, *services: Service) -> list[Process]:
        """Start programs, and wait until all are ready; to be killed is no failure of theirs."""
        return super().start(
            *(
                each if each.max_failures == 1 else replace(each, max_failures=_MAX_FAILURES)
                for each in services
            )
        )

    def process(self, service: Service) -> Process:
        """A program that is not kept running yet."""
        return Process(service, self._logs, [self._keep_open])

    def look(self) -> None:
        """See how everything is, mend what has been broken for long enough, and strike where that is due."""
        super().look()
        is_over = any(each.service.name == "trainer" and each.state is State.DONE for each in self.processes)
        now = float("inf") if is_over else time.monotonic()
        for mend in [mend for at, mend in self._mends if at <= now]:
            mend()
        self._mends = [(at, mend) for at, mend in self._mends if at > now]
        if self._roll is not None and not is_over:
            self._go_on_rolling(self._roll)
        if self._next is not None and not is_over and now >= self._due and self._inject(self._next):
            self._display.say(f"chaos: {self._next}")
            if self._next.kind != "roll":
                self.given[str(self._next)] += 1
            self._wait_for_next()

    def _go_on_rolling(self, steps: Iterator[None]) -> None:
        try:
            next(steps)
        except StopIteration:
            self._roll = None
            self.given[_ROLL] += 1
            self._display.say("chaos: the new version is everywhere")

    def _wait_for_next(self) -> None:
        self._next = next(self._faults, None)
        self._due = time.monotonic() + (self._next.pause if self._next else 0.0)

    def _inject(self, fault: Fault) -> bool:
        """False where it has to wait until the program is there to be killed, or the last roll is over."""
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
        mend = self._store.empty if fault.kind == "fill" else self._links[fault.target].mend
        self._mends.append((time.monotonic() + fault.lasts, mend))
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
    """A site whose trainer, labelers and render worker live some minutes later than its servers."""

    def trainer_environment(self) -> dict[str, str]:
        """All variables of a trainer, the clock's among them."""
        return super().trainer_environment() | fast_clock(self.folder.path)


def fast_clock(folder: Path) -> dict[str, str]:
    """The variables that make a program's clock fast; none where there is no C compiler."""
    library, compiler = folder / "fast_clock.so", shutil.which("cc")
    if not library.exists() and compiler is not None:
        source = Path(__file__).with_name("fast_clock.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library), "FAST_CLOCK": str(FAST_SECONDS)} if library.exists() else {}


def run_batch(
    folder: Folder, options: ExperimentOptions, faults: Iterator[Fault], console: Console
) -> dict[str, Any]:
    """Run an experiment under faults; what was done to it, and what became of its labels."""
    with contextlib.ExitStack() as parts:
        held = parts.enter_context(folder.held())
        display = parts.enter_context(Display(console))
        ports, _ = folder.ports()
        # Programs know the links' ports; the servers have those after them, of web servers there are two.
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
                display.say(f"chaos: without {missing}")
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
    """A web server of the current version, with one process, at a port that only its link knows."""
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
    """The variables of a migration that lets the site's requests go first, as docs/deployment.md has it."""
    return {**site.set_up().environment, "PGOPTIONS": "-c lock_timeout=5s"}


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """What was done, to how many labels, and what came of it."""
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
    """How many programs were killed."""
    return sum(
        count for result in results for fault, count in result["blows"].items() if fault.startswith("kill ")
    )


def main() -> int:
    """Run the batches that are missing, and print what all of them came to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000, help="in all, those of earlier calls among them")
    parser.add_argument("--blows", type=int, default=60, help="in each batch")
    parser.add_argument("--every", type=float, default=2.0, help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, default=1, help="of the first batch, for calls beside each other")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--dir", type=Path, default=Path("state/chaos"), help="the stack's folder")
    parser.add_argument("--show", action="store_true", help="only print the results")
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
                    break  # the run and the logs are there to be looked at
                shutil.rmtree("runs")
    except StackError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    print(report(results))
    return 0 if all(result["holds"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
