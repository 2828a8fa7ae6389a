"""A file system without shared memory, seen by two clients: FUSE mounts of one folder by Debian's bindfs."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import completed


@pytest.fixture(scope="session")
def two_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """One folder, mounted twice as a network file system would be on two machines.

    Files can't be mapped into shared memory, and each mount sees the locks of the other.
    """
    if shutil.which("bindfs") is None or not Path("/dev/fuse").exists():
        pytest.skip("needs FUSE and bindfs (Debian: apt-get install bindfs) to mount a folder twice")
    server = tmp_path_factory.mktemp("server")
    clients = (tmp_path_factory.mktemp("client"), tmp_path_factory.mktemp("client"))
    mounted: list[Path] = []
    try:
        for client in clients:
            options = (
                "-o",
                "direct_io,attr_timeout=0,entry_timeout=0",
                "--multithreaded",
                "--enable-lock-forwarding",
            )
            done = completed(["bindfs", *options, server, client])
            if done.returncode:
                pytest.skip(f"this machine does not let bindfs mount a folder: {done.stderr.strip()}")
            mounted.append(client)
        yield clients
    finally:
        for client in mounted:
            subprocess.run(["umount", "--lazy", client], check=True)
