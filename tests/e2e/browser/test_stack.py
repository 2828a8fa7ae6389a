"""The full stack as a developer starts it: PostgreSQL, Redis, S3, web server, workers, trainer, browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from playwright.sync_api import Browser, expect

from stack.folder import PORTS, Folder
from stack.postgres import PostgreSQL
from stack.site import STORAGE, Site
from teacher.labeling.client import (
    ClipReference,
    Experiment,
    ExperimentSettings,
    FeedbackClient,
    Registration,
)
from teacher.storage import open_storage
from tests.deployment.backed_up import files_below, manifest_of
from tests.waiting import completed

ROOT = Path(__file__).parents[3]
LOOK_LONG_ENOUGH_MS = 450
STOP_SECONDS = 180.0
SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


class Stack:
    """``python -m stack`` in a folder, and what it started."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder / "stack"
        self.output = folder / "output"
        self.output.write_text("")
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stack", "--dir", str(self.folder), *options],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )

    @property
    def site(self) -> Site:
        """Addresses and secrets, from its folder."""
        return Site.of(Folder(self.folder), json.loads((self.folder / "ports.json").read_text()))

    def wait(self) -> Stack:
        """Return when all is up."""
        self.until(lambda: "Ctrl-C" in self.output.read_text(), "the start")
        return self

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 300) -> None:
        """Wait for something that happens while the stack runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"{what}: the stack ended; {self.last_words()}"
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s; {self.last_words()}"
            time.sleep(0.05)

    def last_words(self) -> str:
        logs = [self.output, *sorted(self.folder.glob("logs/*.log"))]
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


def children(parent: int) -> dict[int, str]:
    """The command line of each process that ``parent`` has started."""
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    lines = {int(pid): Path(f"/proc/{pid}/cmdline") for pid in pids}
    return {pid: path.read_bytes().replace(b"\0", b" ").decode() for pid, path in lines.items()}


def family(parent: int) -> set[int]:
    """``parent`` and all that it started, directly or not."""
    return {parent}.union(*(family(child) for child in children(parent)))


def alive(pids: set[int]) -> dict[int, str]:
    """Return those that still run, with their names, without zombies."""
    found = {}
    for pid in pids:
        status = Path(f"/proc/{pid}/status")
        if status.exists() and not re.search(r"^State:\s+Z", text := status.read_text(), re.MULTILINE):
            found[pid] = text.split()[1]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for stacks, one at a time, each with the data of the one before.

    Its site's last port is the last of the range: another test's site takes the first that is free, also
    between two stacks of this folder.
    """
    folder = tmp_path_factory.mktemp("full")
    (folder / "stack").mkdir(mode=0o700)
    for name, content in {"programs.lock": "", "ports.json": json.dumps({"site": PORTS["site"][-1]})}.items():
        (folder / "stack" / name).touch(mode=0o600)
        (folder / "stack" / name).write_text(content)
    yield folder
    PostgreSQL(folder / "stack" / "postgres", port=0, password="").remove()


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[Stack]:
    stack = Stack(folder, "--workers", "1")
    try:
        yield stack.wait()
    finally:
        stack.close()


@pytest.fixture(scope="module")
def experiment(stack: Stack, clips: tuple[Path, Path]) -> Iterator[tuple[Experiment, UUID]]:
    """An experiment with one comparison of a red and a blue clip, registered as a trainer does."""
    variables = stack.site.trainer_variables()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        store = open_storage(variables["TEACHER_STORAGE"])
    client = FeedbackClient(variables["TEACHER_SITE_URL"], variables["TEACHER_TOKEN"])
    made = client.put_experiment(
        ExperimentSettings(
            name="browser",
            run_id=uuid4(),
            env_id="Any-v0",
            prompt="Which is red?",
            n_labels=1,
            fps=20,
            has_true_reward=True,
        )
    )
    uuid = uuid4()
    keys = [f"browser/{uuid}/{side}.mp4" for side in ("first", "second")]
    for key, clip in zip(keys, clips, strict=True):
        store.put(key, clip)
    items = tuple(ClipReference(key, value) for key, value in zip(keys, (2.0, 1.0), strict=True))
    client.register("browser", [Registration(uuid=uuid, phase="training", step=1, priority=1, items=items)])
    yield made, uuid
    client.close()


@pytest.mark.slow
def test_browser_s3_postgresql(stack: Stack, experiment: tuple[Experiment, UUID], browser: Browser) -> None:
    made, uuid = experiment
    page = browser.new_page(locale="en-US")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(made.invite_url)
    page.wait_for_selector("main[data-state=judging]", state="attached")
    page.wait_for_timeout(LOOK_LONG_ENOUGH_MS)
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#answered")).to_have_text("1")
    expect(page.locator("#unsaved")).to_be_hidden()
    page.close()

    signed = [url for url in requested if url.startswith(f"{stack.site.s3.url}/clips/browser/{uuid}/")]
    assert len(signed) >= 2
    assert all("X-Amz-Signature=" in url for url in signed)
    with psycopg.connect(stack.site.postgres.url) as database:
        rows = database.execute(
            "SELECT l.choice, l.swapped, d.decision FROM feedback_label l "
            "JOIN feedback_comparison c ON c.id = l.comparison_id "
            "JOIN feedback_decision d ON d.comparison_id = c.id WHERE c.uuid = %s",
            (uuid,),
        ).fetchall()
    assert rows in ([("left", False, "first")], [("left", True, "second")])


@pytest.mark.slow
def test_starting_twice_says_where_the_first_is(stack: Stack) -> None:
    command = [sys.executable, "-m", "stack", "--dir", str(stack.folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert stack.site.url in line
    assert str(stack.process.pid) in line


@pytest.mark.slow
def test_no_secret_can_be_read_by_others(stack: Stack) -> None:
    kept = json.loads((stack.folder / "secrets.json").read_text())
    assert kept.pop("sign_in_code") in stack.output.read_text()  # is printed, for who started it
    secrets = [
        *kept.values(),
        (stack.folder / "token").read_text().strip(),
    ]
    shown = " ".join(line for pid in family(stack.process.pid) for line in children(pid).values())
    written = stack.output.read_text() + "".join(log.read_text() for log in stack.folder.glob("logs/*"))
    for secret in secrets:
        assert secret not in shown
        assert secret not in written
    for path in [stack.folder, *stack.folder.iterdir()]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.slow
def test_the_written_variables_make_a_shell_a_trainers(stack: Stack) -> None:
    command = ["env", "-i", "sh", "-c", f". {stack.folder}/env && {sys.executable} -c '{SHOW_ENVIRONMENT}'"]
    shown: Mapping[str, str] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    expected = stack.site.trainer_variables()
    assert {name: shown[name] for name in expected} == expected
    assert expected["TEACHER_STORAGE"] == STORAGE
    assert not shown.keys() & {"DATABASE_URL", "SECRET_KEY"}


@pytest.mark.slow
def test_printed_commands_start_teach_in_a_fresh_shell(stack: Stack) -> None:
    said = re.search(r"^Teach (.*\n) {7}(.*)\n", stack.output.read_text(), re.MULTILINE)
    assert said is not None
    lines = "".join(said.groups()).replace("ShortHopper-v1", "Reacher-v1").replace("NAME", "typed")
    with subprocess.Popen(
        ["env", "-i", "sh", "-c", f"{lines} -V"],
        cwd=stack.folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        assert shell.stdout is not None
        shown = ""
        for line in shell.stdout:
            shown += line
            if stack.site.url in line:
                break
        os.killpg(shell.pid, signal.SIGTERM)
    assert f"{stack.site.url}/" in shown


@pytest.mark.slow
def test_killed_stack_restarts_with_its_data(stack: Stack, experiment: tuple[Experiment, UUID]) -> None:
    made, uuid = experiment
    programs = family(stack.process.pid)
    assert len(programs) > 8
    stack.process.kill()
    again = Stack(stack.folder.parent, "--workers", "1")
    try:
        again.wait()
        assert not alive(programs)
        client = FeedbackClient(again.site.url, again.site.trainer_variables()["TEACHER_TOKEN"])
        assert uuid in client.statuses(made.name)
        assert again.site.url == made.label_url.partition("/experiments/")[0], "it moved to another port"
        client.close()
        programs = family(again.process.pid)
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(STOP_SECONDS) == 0
        assert not alive(programs)
    finally:
        again.close()


@pytest.mark.slow
def test_stack_is_restored(stack: Stack, experiment: tuple[Experiment, UUID], tmp_path: Path) -> None:
    old, new = stack.folder, tmp_path / "new"
    stack.close()  # unless it was killed above

    def command(*options: str) -> subprocess.CompletedProcess[str]:
        return completed(
            [sys.executable, "-m", "stack", *options],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    try:
        lacking = command("--dir", str(tmp_path / "none"), "--backup", "first")
        assert (lacking.returncode, lacking.stderr.count("\n")) == (1, 1)
        assert "is not a stack's data folder" in lacking.stderr
        assert not (tmp_path / "none").exists()
        made = command("--dir", str(old), "--backup", "first")
        assert made.returncode == 0, made.stdout + made.stderr
        again = command("--dir", str(old), "--backup", "first")
        assert again.returncode == 1
        assert "first already exists" in again.stderr
        restored = command("--dir", str(new), "--restore", "first")
        assert restored.returncode == 0, restored.stdout + restored.stderr
        clips = files_below(new / "s3/clips")
        assert len(clips) >= 2
        assert clips == files_below(old / "s3/clips")
        for name in ("secrets.json", "token"):
            assert (new / name).read_text() == (old / name).read_text()
        assert command("--dir", str(new), "--backup", "second").returncode == 0
        first, second = (manifest_of(tmp_path / name)["database"] for name in ("first", "second"))
        assert first == second
        assert first["tables"]["feedback_comparison"]["rows"] == 1
    finally:
        shutil.rmtree((new / "postgres").resolve(), ignore_errors=True)
