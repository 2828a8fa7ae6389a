"""People before the pages: a researcher and labelers, signed in with a browser."""

from collections.abc import Iterator

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import translation


def html_of(client: Client, path: str) -> str:
    """Return a page, which is there."""
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """Leave no language behind: the test client answers in this thread."""
    with translation.override("en"):
        yield


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """Forget what is kept for some seconds: each test begins with an empty database."""
    cache.clear()
