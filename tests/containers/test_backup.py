"""Backup and restore by the commands of the page about deployment."""

import shutil

from tests.containers.composed import PAGE, Stack
from tests.containers.experiment import Experiment


def test_a_stack_without_its_volumes_comes_back_from_a_backup_with_every_label(
    stack: Stack, taught: Experiment
) -> None:
    stack.documented("run --rm manage backup backups/monday")
    labels = stack.query("SELECT uuid, choice, swapped FROM feedback_label ORDER BY id")
    assert len(labels) >= taught.labels
    stack.down()
    shutil.rmtree(stack.folder / "runs", ignore_errors=True)
    (stack.folder / ".env").unlink()

    assert "cp backups/monday/env .env" in PAGE
    shutil.copy(stack.folder / "backups/monday/env", stack.folder / ".env")
    stack.start_servers()
    stack.documented("run --rm manage restore backups/monday")
    stack.up()

    assert stack.query("SELECT uuid, choice, swapped FROM feedback_label ORDER BY id") == labels
    taught.check()
    # A trainer goes on with the restored run.
    taught.finish(taught.resume("-t", "16000"))
