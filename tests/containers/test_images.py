"""The images' contents."""

import re

import pytest

from tests.containers.composed import PAGE
from tests.containers.conftest import ROLES
from tests.containers.engine import Engine

SIZES = {role: int(size) for role, size in re.findall(r"^\| (\w+) \| (\d+) MB\b", PAGE, re.MULTILINE)}
PARQUET = """
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"x": [7]}), "/tmp/x")
print(pyarrow.parquet.read_table("/tmp/x"))
"""


def run(engine: Engine, image: str, *command: str) -> str:
    """Run a command in a container without a network, and return its output."""
    program, *arguments = command
    return engine("run", "--rm", "--network", "none", "--entrypoint", program, image, *arguments)


@pytest.mark.parametrize("role", ROLES)
def test_images_have_the_documented_sizes(engine: Engine, images: str, role: str) -> None:
    measure = "du --summarize --one-file-system --block-size 1M /opt/rl-teacher"
    found = run(engine, f"{images}-{role}", *measure.split())
    assert int(found.split()[0]) == pytest.approx(SIZES[role], rel=0.1)


def test_the_site_image_reads_and_writes_parquet(engine: Engine, images: str) -> None:
    """The parts of PyArrow that the image keeps are enough."""
    assert "7" in run(engine, f"{images}-site", "python", "-c", PARQUET)
