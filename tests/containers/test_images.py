"""What is in the images."""

import re

import pytest

from tests.containers.composed import PAGE
from tests.containers.conftest import ROLES
from tests.containers.engine import Engine

SIZES = {role: int(size) for role, size in re.findall(r"^\| (\w+) \| (\d+) MB \|", PAGE, re.MULTILINE)}


@pytest.mark.parametrize("role", ROLES)
def test_an_image_is_as_large_as_the_page_says(engine: Engine, images: str, role: str) -> None:
    measure = "du --summarize --one-file-system --block-size=1M /opt/rl-teacher"
    found = engine("run", "--rm", "--network", "none", "--entrypoint", "sh", f"{images}-{role}", "-c", measure)
    assert int(found.split()[0]) == pytest.approx(SIZES[role], rel=0.1)
