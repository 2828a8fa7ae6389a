"""Nothing is lost where everything dies, in short; ``python -m benchmarks.chaos`` is the long form."""

import contextlib
import errno
import json
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

import stack.process
from benchmarks.chaos import (
    FAST_SECONDS,
    FAULTS,
    LINKS,
    PROGRAMS,
    Fault,
    FaultInjector,
    Store,
    drawn_faults,
    fast_clock,
    kills_of,
    report,
    run_batch,
)
from benchmarks.chaos_link import Link
from benchmarks.chaos_upgrade import Versions
from stack.experiment import ExperimentOptions
from stack.folder import Folder
from stack.postgres import PostgreSQL
from stack.process import Service, State
from stack.supervisor import Display
from tests.databases import database_of
from tests.waiting import completed, free_port

SMALL = ExperimentOptions(env_id="Reacher-v1", labels=40, pretrain_labels=8, steps=6000, bots=3, seconds=2.0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Make a stack and remove its data afterwards."""
    yield Folder(tmp_path / "stack")
    PostgreSQL(tmp_path / "stack" / "postgres", port=0, password="").remove()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_label_is_lost_where_each_program_dies_and_each_link_breaks(folder: Folder, here: Path) -> None:
    kills = [Fault("kill", name, 1.5) for name in PROGRAMS]
    cuts = [Fault("cut", name, 0.5, 1.5) for name in LINKS]
    others = [Fault("slow", "postgres", 0.2, 2.0), Fault("fill", "s3", 0.2, 2.0)]
    faults = [fault for pair in zip(kills, [*cuts, *others], strict=False) for fault in pair] + kills[6:]
    faults.insert(0, Fault("roll", "site", 1.0))
    console = Console(record=True, highlight=False, width=120)
    result = run_batch(folder, SMALL, iter(faults), console)
    said = console.export_text()
    logs = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(folder.logs.glob("*.log")))
    assert [fault for fault in FAULTS if result[fault]] == [], f"faults: {said}{logs}"
    assert result["holds"], said + logs
    assert (result["asked"], result["reached"], result["unanswered"]) == (40, 40, 0)
    assert 0 <= result["stored"] - result["acknowledged"] <= 3, "the killed labelers' last answers"
    given = {str(fault): 1 for fault in faults}
    if "fill s3" not in result["blows"]:  # only root has a disk to fill
        del given["fill s3"]
    assert result["blows"] == given
    assert result["clock"] == (600 if shutil.which("cc") else 0)
    assert "chaos: the new version is fully rolled out" in said
    for name in PROGRAMS:
        assert f"{name} ended (SIGKILL); restarting it" in said
        assert f"{name} is running again" in said
    assert kills_of([result]) == len(PROGRAMS)
    assert report([result, result]).startswith("2 batches, 18 kills, ")


def test_blows_are_drawn_from_the_seed() -> None:
    once, again, other = (list(drawn_faults(seed, 400, every=2.0)) for seed in (1, 1, 2))
    assert once == again != other
    assert {fault.target for fault in once if fault.kind == "kill"} == set(PROGRAMS)
    assert {fault.kind for fault in once} == {"kill", "cut", "slow", "fill", "roll"}
    assert sum(fault.pause for fault in once) / 400 == pytest.approx(2.0, rel=0.2)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


@pytest.fixture
def link(server: socket.socket) -> Iterator[tuple[Link, int]]:
    port = free_port()
    with Link(port, server.getsockname()[1]) as link:
        yield link, port


def test_a_link_leads_to_whichever_server_is_there() -> None:
    port, first, second = (free_port() for _ in range(3))

    def serving(*ports: int) -> list[int]:
        """Which servers four connections in a row reach, of those that run."""
        with contextlib.ExitStack() as open_:
            servers = [open_.enter_context(socket.create_server(("127.0.0.1", port))) for port in ports]
            for _ in range(4):
                client = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                client.sendall(b"there")
                ready, _, _ = select.select(servers, [], [], 30)
                [server] = ready
                reached.append(server.getsockname()[1])
                assert open_.enter_context(server.accept()[0]).recv(100) == b"there"
        return reached

    with Link(port, first, second):
        reached: list[int] = []
        assert sorted(serving(first, second)) == [first, first, second, second]
        reached = []
        assert serving(second) == [second] * 4


@pytest.fixture
def new_database(postgres_url: str) -> str:
    """The address of an empty one."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE versions")
    return database_of(postgres_url, "versions")


def test_each_version_of_the_site_brings_a_migration_which_gives_way_to_what_takes_long(
    tmp_path: Path, new_database: str
) -> None:
    versions = Versions(tmp_path / "versions")
    before = versions.current.resolve()
    after = versions.make()
    assert versions.current.resolve() == before
    versions.switch(after)
    assert versions.current.resolve() == after != before
    environment = os.environ | {
        "DATABASE_URL": new_database,
        "SECRET_KEY": "only-for-tests-" + "".join(map(str, range(30))),
        "TEACHER_STATE_DIR": str(tmp_path),
        "PGOPTIONS": "-c lock_timeout=500ms",
    }

    def migrate(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", "migrate"]
        return completed(command, cwd=folder, env=environment)

    assert "chaos" not in migrate(before).stdout
    with psycopg.connect(new_database) as export:
        export.execute("SELECT 1 FROM feedback_label")  # until its transaction ends
        refused = migrate(versions.current)
        assert refused.returncode != 0
        assert "canceling statement due to lock timeout" in refused.stderr
        export.execute("SELECT n_labels FROM feedback_comparison")
    done = migrate(versions.current)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"Applying feedback.*chaos", done.stdout)) == 1
    assert versions.new_labels(new_database) == 0


def test_link_is_cut_slowed_and_restored(server: socket.socket, link: tuple[Link, int]) -> None:
    between, port = link
    with contextlib.ExitStack() as open_:
        client = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        served = open_.enter_context(server.accept()[0])
        client.sendall(b"there")
        assert served.recv(100) == b"there"
        served.sendall(b"and back")
        assert client.recv(100) == b"and back"
        between.cut()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
        refused = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        with contextlib.suppress(ConnectionResetError):
            assert refused.recv(100) == b""
        between.restore()
        between.slow(0.2)
        client = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        served = open_.enter_context(server.accept()[0])
        begun = time.monotonic()
        client.sendall(b"late")
        assert served.recv(100) == b"late"
        assert time.monotonic() - begun >= 0.2
        client.shutdown(socket.SHUT_WR)
        assert served.recv(100) == b""


def test_closed_connections_close_behind_a_link(server: socket.socket, link: tuple[Link, int]) -> None:
    _, port = link
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        served, _ = server.accept()
        client.sendall(b"there")
        assert served.recv(100) == b"there"
        at_once = struct.pack("ii", 1, 0)  # as the kernel does for a killed one that has not read everything
        served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        served.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""


def test_a_fast_clock_changes_the_time_of_day_alone(tmp_path: Path) -> None:
    variables = fast_clock(tmp_path)
    if not variables:
        pytest.skip("a clock is made fast by what a C compiler makes; there is none")
    program = """if True:
        import datetime, json, threading, time
        begun = time.monotonic()
        time.sleep(0.01)
        threading.Event().wait(0.01)
        print(json.dumps([time.time(), datetime.datetime.now().timestamp(), begun, time.monotonic()]))"""
    before = time.time()
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env=os.environ | variables, capture_output=True, check=True, timeout=60)
    by_time, by_datetime, begun, ended = json.loads(said.stdout)
    for fast in (by_time, by_datetime):
        assert before + FAST_SECONDS - 1 < fast < time.time() + FAST_SECONDS + 1
    assert 0.02 <= ended - begun < 60


def test_a_full_disk_takes_nothing_until_there_is_room(tmp_path: Path) -> None:
    with Store(tmp_path / "s3") as store:
        if not store.is_small:
            pytest.skip("only root may have a small disk of its own to fill")
        store.fill()
        with pytest.raises(OSError, match="No space left") as refused:
            (tmp_path / "s3" / "clip").write_bytes(bytes(100_000))
        assert refused.value.errno == errno.ENOSPC
        store.empty()
        (tmp_path / "s3" / "clip").write_bytes(bytes(100_000))


def test_killed_program_restarts_after_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack.process, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(stack.process, "LONGEST_DELAY_SECONDS", 0.002)
    said = StringIO()
    with (
        (tmp_path / "held").open("w") as held,
        Display(Console(file=said, width=200)) as display,
        FaultInjector(tmp_path, held.fileno(), display) as injector,
    ):
        [process] = injector.start(Service(name="sleeper", command=lambda: ["sleep", "600"]))
        for restarts in range(stack.process.MAX_FAILURES + 1):
            assert injector._kill("sleeper")
            while process.restarts == restarts or process.state is not State.READY:
                injector.look()
    pauses = re.findall(r"restarting it in (\S+) s", said.getvalue())
    assert pauses == ["0.001", *["0.002"] * stack.process.MAX_FAILURES]
