"""Test what differs between operating systems."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from teacher.platforms import UNSUPPORTED, reserve


def run(system: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that takes itself to be on another operating system."""
    pretend = f"import shutil, sys; sys.platform = {system!r}; sys.modules['fcntl'] = None"
    return subprocess.run(
        [sys.executable, "-c", f"{pretend}\n{code}"], capture_output=True, text=True, check=False
    )


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
