"""Files and folders that several processes want at once, and what differs between operating systems."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from teacher import files
from teacher.errors import ConfigError
from teacher.files import atomic_folder, atomic_write, locked_folder, remove_held
from teacher.platforms import UNSUPPORTED, reserve
from tests.waiting import completed


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_who_write_one_path_each_write_a_file_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    with atomic_write(path) as last:
        last.write(b"last, ")
        with atomic_write(path) as first:
            first.write(b"first")
        assert path.read_bytes() == b"first"
        with atomic_write(path) as second:  # the part of the first has a name again that was free
            second.write(b"second")
            last.write(b"and whole")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"last, and whole"
    assert names_in(tmp_path) == ["labels"]


def test_leftovers_of_a_killed_writer_are_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".labels.part").write_bytes(b"half of a checkpoint")
    with atomic_write(tmp_path / "labels") as file:
        file.write(b"mine")
    assert (tmp_path / "labels").read_bytes() == b"mine"
    assert names_in(tmp_path) == ["labels"]


def test_renamed_part_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened under the one name, locked under the other: it is somebody's finished file now."""
    path, lock = tmp_path / "labels", fcntl.flock
    (tmp_path / ".labels.part").write_bytes(b"theirs")

    def rename_and_lock(file: int, how: int) -> None:
        monkeypatch.undo()
        (tmp_path / ".labels.part").rename(path)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", rename_and_lock)
    with atomic_write(path) as file:
        file.write(b"mine")
        assert path.read_bytes() == b"theirs"
    assert path.read_bytes() == b"mine"
    assert names_in(tmp_path) == ["labels"]


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)


@pytest.mark.parametrize("has_links", [True, False])
def test_new_file_never_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:
        without_links(monkeypatch)
    path = tmp_path / "labels"
    with atomic_write(path, new=True) as file:
        file.write(b"first")
    assert path.read_bytes() == b"first"
    with (
        pytest.raises(ConfigError, match=r"labels already exists; choose another name or remove it$"),
        atomic_write(path, new=True) as file,
    ):
        file.write(b"second")
    assert path.read_bytes() == b"first"
    assert names_in(tmp_path) == ["labels"]


def test_writes_without_file_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with atomic_write(tmp_path / "labels") as file:
        file.write(b"mine")
    with atomic_folder(tmp_path / "pictures") as folder:
        (folder / "1.png").touch()
    assert names_in(tmp_path) == ["labels", "pictures"]
    with pytest.raises(OSError, match="not supported"), locked_folder(tmp_path / "run"):
        pass


def test_two_who_fill_one_folder_each_fill_their_own_and_the_first_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "pictures"
    filling = contextlib.ExitStack()
    last = filling.enter_context(atomic_folder(path))
    (last / "last.png").touch()
    with atomic_folder(path) as first:
        (first / "first.png").touch()
    with pytest.raises(ConfigError, match=r"pictures already exists; choose another name or remove it$"):
        filling.close()
    assert names_in(path) == ["first.png"]
    assert names_in(tmp_path) == ["pictures"]


def test_a_folder_takes_no_files_place(tmp_path: Path) -> None:
    path = tmp_path / "pictures"
    with pytest.raises(ConfigError, match="pictures already exists"), atomic_folder(path):
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    assert names_in(tmp_path) == ["pictures"]


def test_leftovers_of_a_killed_process_stay_out_of_the_folder(tmp_path: Path) -> None:
    part = tmp_path / ".pictures.part"
    (part / "deeper").mkdir(parents=True)
    (part / "old.png").touch()
    with atomic_folder(tmp_path / "pictures") as folder:
        (folder / "new.png").touch()
    assert names_in(tmp_path / "pictures") == ["new.png"]
    assert names_in(tmp_path) == ["pictures"]


def test_a_folder_that_cannot_be_filled_goes_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_folder(tmp_path / "pictures") as folder:
        (folder / "deeper" / "1.png").touch()
    assert names_in(tmp_path) == []


def test_a_folder_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("teacher.files.time.sleep", pauses.append)
    with locked_folder(tmp_path), pytest.raises(BlockingIOError), locked_folder(tmp_path):
        pass
    assert 0.1 < sum(pauses) < 1
    with locked_folder(tmp_path):
        pass


def test_checking_a_lock_does_not_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``teach ls`` holds the lock for as long as it takes to let it go again."""
    lock = (tmp_path / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    monkeypatch.setattr("teacher.files.time.sleep", lambda _: lock.close())
    with locked_folder(tmp_path):
        assert lock.closed


def remove_while_another_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold a folder, and remove it when somebody has opened its lock to hold it, too."""
    holding = contextlib.ExitStack()
    holding.enter_context(locked_folder(folder))
    lock = fcntl.flock

    def remove_and_lock(file: IO[str] | int, how: int) -> None:
        monkeypatch.undo()
        remove_held(folder)
        holding.close()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)


def test_removed_folder_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs" / "a"
    remove_while_another_waits(folder, monkeypatch)
    with locked_folder(folder):
        assert names_in(folder) == ["lock"]
        with pytest.raises(BlockingIOError), locked_folder(folder):
            pass
    assert names_in(folder.parent) == ["a"]


@pytest.fixture
def folder_that_comes_and_goes(tmp_path: Path) -> Iterator[Path]:
    """A folder that another thread holds and removes again and again."""
    folder, end = tmp_path / "runs" / "a", threading.Event()

    def come_and_go() -> None:
        while not end.is_set():
            with contextlib.suppress(BlockingIOError), locked_folder(folder):
                remove_held(folder)
                with contextlib.suppress(OSError):
                    folder.parent.rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    yield folder
    end.set()
    thread.join()


def test_lock_survives_others(folder_that_comes_and_goes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PAUSE_SECONDS", 0.0)
    held = 0
    while held < 50:
        with (
            contextlib.suppress(BlockingIOError, FileNotFoundError),
            locked_folder(folder_that_comes_and_goes),
        ):
            (folder_that_comes_and_goes / "config.json").touch()
            held += 1
            assert names_in(folder_that_comes_and_goes) == ["config.json", "lock"]
            (folder_that_comes_and_goes / "config.json").unlink()


def run(system: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that takes itself to be on another operating system."""
    pretend = f"import shutil, sys; sys.platform = {system!r}; sys.modules['fcntl'] = None"
    return completed([sys.executable, "-c", f"{pretend}\n{code}"])


def test_windows_is_refused_in_one_line() -> None:
    process = run("win32", "from teacher.__main__ import main; sys.exit(main())")
    assert (process.returncode, process.stderr) == (2, f"teach: {UNSUPPORTED}\n")
    process = run("win32", "import teacher.files")
    assert process.stderr.endswith(f"ImportError: {UNSUPPORTED}\n")


def test_macos_renders_with_its_own_opengl() -> None:
    process = run("darwin", "from teacher.platforms import GL_BACKENDS; print(*GL_BACKENDS)")
    assert process.stdout == "cgl\n", process.stderr


@pytest.mark.parametrize("on_macos", [False, True])
def test_reserving_extends_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_macos: bool) -> None:
    if on_macos:
        monkeypatch.delattr("os.posix_fallocate")
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with path.open("r+b") as file:
        for size in (2**20, 100, 40 * 2**20):
            reserve(file, size)
            assert os.fstat(file.fileno()).st_size >= size
    assert path.stat().st_blocks * 512 >= 40 * 2**20
    assert path.stat().st_size == 40 * 2**20
    assert path.read_bytes()[:8] == b"content\0"
