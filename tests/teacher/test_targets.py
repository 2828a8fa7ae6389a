"""Commands look where they are to write before they do anything that takes long."""

from pathlib import Path

import pytest

from teacher.teach import main

COMMANDS = {
    "record": ["record", "no-run", "FILE"],
    "play": ["play", "no-run", "FILE"],
    "import": ["import", "no-source", "FILE"],
    "relabel": ["relabel", "no-predictor.npz", "no-source", "FILE"],
    "fit": ["fit", "no-answers.npz", "FILE"],
}
"""Their sources do not exist: who looks there first says that instead."""


def refused(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([word.replace("FILE", str(file)) for word in COMMANDS[name]]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_missing_folder_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "missing" / ("a.mp4" if name == "play" else "a.npz")
    assert f"cannot write {file}: there is no folder {file.parent}; create it first" in refused(
        name, file, capsys
    )


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "play"])  # which writes a film again
def test_existing_file_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(b"precious")
    assert f"{file} already exists" in refused(name, file, capsys)
    assert file.read_bytes() == b"precious"
