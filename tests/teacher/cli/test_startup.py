"""Test that commands which need no environment import no slow library."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.settings.config import TeachConfig
from teacher.settings.saved_config import save_config
from teacher.teach import COMMANDS

SLOW = ("torch", "mujoco", "matplotlib", "tensorboard", "boto3", "redis", "celery", "requests", "django")
LINES = {
    "--help": 0,
    "-p rl -e ShortHopper-v1 -n x --sed 3": 2,
    "-p rl -e ShortHopper-v1 -n x -s many": 2,
    "-p rl -e teacher/ShortHoper-v1 -n x": 2,
    "-p rl -e ALE/Pnog-v5 -n x": 2,
    "--resume no/such/run": 2,
    "humble": 2,
    "play no/such/run": 2,
    "export no/such/run labels.npz": 2,
    "record no/such/run expert.npz": 2,
    "ls": 0,
    **{f"{command} --help": 0 for command in COMMANDS},
    **{f"{command} --unknown": 2 for command in COMMANDS},
}
PROGRAM = """
import json, sys
from teacher.teach import main
lines, slow = json.loads(sys.argv[1])
for line in lines:
    try:
        status = main(line.split())
    except SystemExit as ended:
        status = ended.code or 0
    loaded = set(slow) & set(sys.modules)
    print("->", line, status, *sorted(loaded), sep="|")
"""


def test_the_package_itself_loads_nothing() -> None:
    program = "import sys, teacher, agents; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_line_that_trains_nothing_loads_nothing_slow(tmp_path: Path) -> None:
    """In one process, where what one line loads is seen after it and all that follow."""
    config = TeachConfig(
        env_id="Pendulum-v1", predictor="synth", name="x", n_labels=4, runs_dir=str(tmp_path / "runs")
    )
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    Ledger(config.run_dir / LEDGER_NAME).close()
    command = [sys.executable, "-c", PROGRAM, json.dumps([list(LINES), SLOW])]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    reports = [line for line in said.splitlines() if line.startswith("->|")]
    assert reports == [f"->|{line}|{status}" for line, status in LINES.items()]
