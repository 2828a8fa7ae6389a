"""Share runs of ``teach`` and their TensorBoard values among the tests of experiment trackers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import requests
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

RUN = Path("runs/ShortReacher-v1/tracked")
NEW_RUN = "-p synth -e ShortReacher-v1 -n tracked -l 12 -L 8 -t 16000 -i 30 --reward.hidden 8".split()
FAILED = "failed and is tried again from time to time"

Points = dict[tuple[str, int], float]
"""Values by tag and step."""


def teach(folder: Path, *arguments: str, variables: dict[str, str], interrupt: bool = False) -> str:
    """Run ``teach`` in a folder until it ends, and return what it printed, errors included.

    With ``interrupt``, press Ctrl-C as soon as the metrics of two iterations are on the console.
    """
    command = [sys.executable, "-m", "teacher.teach", *arguments]
    paths = {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **paths, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said, rounds = "", 0
        for line in process.stdout:
            said += line
            rounds += line.lstrip()[:1].isdigit() and " of " not in line  # not the count of labels
            if interrupt and rounds == 2:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                interrupt = False
    assert "Traceback" not in said, said
    assert process.returncode == (130 if "To resume:" in said else 0), said
    return said


def stopped_and_resumed(folder: Path, tracker: str, variables: dict[str, str]) -> str:
    """Start a tracked run, press Ctrl-C, extend it until it is done, and return what was printed."""
    said = teach(folder, *NEW_RUN, "--track", tracker, variables=variables, interrupt=True)
    assert "Saved at step" in said
    said += teach(folder, "--resume", str(RUN), "-t", "17000", variables=variables)
    assert "Done after" in said
    assert FAILED not in said, said
    return said


def assert_trains_untracked(folder: Path, tracker: str, reason: str, variables: dict[str, str]) -> None:
    """Check that a run completes without its tracker, and that one line says why."""
    said = teach(folder, *NEW_RUN, "--track", tracker, variables=variables)
    assert "Done after" in said
    (line,) = [line for line in said.splitlines() if FAILED in line]
    assert line.startswith(f"--track {tracker} {FAILED}: ")
    assert reason in line


def tensorboard_points(folder: Path) -> Points:
    """Read all values that the run in a folder has written for TensorBoard."""
    events = EventAccumulator(str(folder / RUN / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {
        (tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)
    }


def videos(folder: Path) -> list[str]:
    """Return the names of the run's videos, by step."""
    return sorted(path.name for path in (folder / RUN / "videos").iterdir())


def responds(url: str) -> bool:
    """Return True if a server is ready to answer there."""
    try:
        return requests.get(url, timeout=1).ok
    except requests.RequestException:
        return False
