"""The benchmark of clips runs, and counts what the rendering processes use."""

from pathlib import Path

import pytest

from benchmarks.clips import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("repeats", ["0", "-1", "many"])
def test_repeats_that_measure_nothing_are_refused(
    repeats: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["clips.py", "--repeats", repeats])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    expected = f"error: argument --repeats: must be a whole number of at least 1, not '{repeats}'"
    assert capsys.readouterr().err.endswith(f"{expected}\n")
