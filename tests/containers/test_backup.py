"""Backup and restore with the documented commands."""

import shutil

from tests.containers.composed import PAGE, Stack
from tests.containers.experiment import Experiment

LABELS = "SELECT uuid, choice, swapped FROM feedback_label ORDER BY id"


def test_backup_restores_labels_after_volumes_are_removed(stack: Stack, finished: Experiment) -> None:
    stack.documented("run --rm manage backup backups/monday")
    labels = stack.query(LABELS)
    assert len(labels) >= finished.labels
    stack.down()
    (stack.folder / ".env").unlink()

    assert "cp backups/monday/env .env" in PAGE
    shutil.copy(stack.folder / "backups/monday/env", stack.folder / ".env")
    if not stack.engine.resolves_dependencies:
        stack.start_servers()
    stack.documented("run --rm manage restore backups/monday")
    stack.up()

    assert stack.query(LABELS) == labels
    finished.check_labels()
    finished.wait(finished.resume("-t", "16000"))
