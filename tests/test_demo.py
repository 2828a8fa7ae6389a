"""``make demo BOTS=3``, as the README says: nobody needs to do anything but watch."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from teacher.clips.gl import install_command
from teacher.ledger import Ledger

PROGRAM = Path(__file__).parents[1] / "scripts" / "demo.py"
PRETRAINING = 20
ANSWERED = re.compile(r"^ +[\d,]+ +(\d+) ", re.MULTILINE)
"""In a row of the table that a run prints: steps, answers so far."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "enough"), [("ShortHopper-v1", PRETRAINING + 5), ("Pendulum-v1", PRETRAINING)]
)
def test_the_demo_with_bots_goes_on_by_itself_to_answers_about_what_the_agent_does(
    tmp_path: Path, no_opengl: dict[str, str], env_id: str, enough: int
) -> None:
    """A hopper, or where no OpenGL draws it a pendulum."""
    variables = no_opengl if env_id == "Pendulum-v1" else os.environ
    said = tmp_path / "demo.log"
    with said.open("w") as log:
        demo = subprocess.Popen(
            [sys.executable, PROGRAM],
            cwd=tmp_path,
            env={**variables, "BOTS": "3", "PYTHONPATH": str(PROGRAM.parents[1])},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 280
        while not any(int(answered) >= enough for answered in ANSWERED.findall(said.read_text())):
            assert demo.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
    finally:
        demo.terminate()
        status = demo.wait(60)
    printed = said.read_text()
    assert status == 130, printed
    assert "steps/s" in printed
    assert printed.count("Label here: http://127.0.0.1:") == 1
    assert f"--resume runs/{env_id}/demo-" in printed
    assert (printed.splitlines()[-1] == install_command()) == (env_id == "Pendulum-v1")
    assert "could not be shown" not in printed
    (path,) = tmp_path.glob(f"runs/{env_id}/*/ledger.sqlite3")
    ledger = Ledger(path, read_only=True)
    assert ledger.asked("pretraining") <= PRETRAINING + 5  # some are to spare
    assert ledger.usable() >= enough
    ledger.close()
