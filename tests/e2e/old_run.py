"""Make ``old_run.zip``, the files of an unfinished run of 0.1.0 and of its site, with that version's code:

git worktree add /tmp/old v0.1.0
python -m tests.e2e.old_run /tmp/old

The run was stopped while labelers were answering, so the site has labels that its trainer has not read.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path
from zipfile import ZIP_LZMA, ZipFile

from tests.e2e.test_whole_loop import OLD_RUN, World
from tests.waiting import wait_until

_SETTINGS = "-L 8 -l 20 -t 12288 --reward.hidden 8 --segment_steps 4 --prompt Which? --pretrain_iters 20"
_LEFT_OUT = {"tensorboard", "site"}


def main(worktree: Path) -> None:
    """Run the old trainer, site and labelers, stop them, and pack their files."""
    os.environ["PYTHONPATH"] = str(worktree)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), "Pendulum-v1", "old")
        try:
            trainer = world.start(*_SETTINGS.split())
            world.until(lambda: world.registered() > 0, "the first comparison")
            world.bots(2)
            world.until(lambda: len(world.acknowledged()) >= 12, "12 answers")
            trainer.send_signal(signal.SIGINT)
            world.until(lambda: trainer.poll() is not None, "the saved run")
            pid = world.site()["pid"]
        finally:
            world.close()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), lambda: "the site runs on", seconds=60)
        _pack(Path(folder))


def _pack(folder: Path) -> None:
    with ZipFile(OLD_RUN, "w", ZIP_LZMA) as packed:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and not {*name.parts} & _LEFT_OUT and path.suffix != ".log":
                packed.write(path, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
