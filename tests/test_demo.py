"""``make demo BOTS=3``, as the README says: nobody needs to do anything but watch."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from teacher.data.ledger import Ledger
from teacher.envs.gl import install_command

PROGRAM = Path(__file__).parents[1] / "scripts" / "demo.py"
PRETRAINING = 20


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "enough"), [("ShortHopper-v1", 3), ("Pendulum-v1", PRETRAINING + 6)])
def test_demo_reaches_training(tmp_path: Path, no_opengl: dict[str, str], env_id: str, enough: int) -> None:
    """A hopper, of which the best and worst of four are asked for, or where no OpenGL draws it a pendulum."""
    variables = no_opengl if env_id == "Pendulum-v1" else {**os.environ, "FEEDBACK": "best_worst"}
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
        while answers(tmp_path / "runs" / env_id) < enough:
            assert demo.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
    finally:
        demo.terminate()
        status = demo.wait(60)
    printed = said.read_text()
    assert status == 130, printed
    assert bool(re.search(r"^ +steps +answered ", printed, re.MULTILINE)) == (enough > PRETRAINING)
    assert printed.count("Label and watch here: http://127.0.0.1:") == 1
    assert f"--resume runs/{env_id}/demo-" in printed
    assert (printed.splitlines()[-1] == install_command()) == (env_id == "Pendulum-v1")
    assert "could not be shown" not in printed
    assert answers(tmp_path / "runs" / env_id) >= enough
    kinds = {"best_worst"} if env_id == "ShortHopper-v1" else {"pair"}
    (path,) = (tmp_path / "runs" / env_id).glob("*/ledger.sqlite3")
    with contextlib.closing(Ledger(path, read_only=True)) as ledger:
        assert {answered.kind for answered in ledger.answered()} == kinds


def answers(runs: Path) -> int:
    """Labels of the one run in a folder that can be learned from; 0 while it is not there."""
    for path in runs.glob("*/ledger.sqlite3"):
        with contextlib.closing(Ledger(path, read_only=True)) as ledger:
            assert ledger.asked("pretraining") <= PRETRAINING + 5  # some are to spare
            return ledger.usable()
    return 0
