"""The site's tests once more, on a real PostgreSQL: locks, clocks and isolation differ from SQLite's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGES = HERE / "pages"


@pytest.mark.slow
@pytest.mark.skipif("SITE_TESTS_ON_POSTGRESQL" in os.environ, reason="this is the run on PostgreSQL")
def test_the_site_passes_its_tests_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))
    }
    environment = inherited | {
        "SITE_TESTS_ON_POSTGRESQL": "1",
        "DATABASE_URL": postgres_url,
        "SECRET_KEY": "only-for-tests-" + "x" * 40,
        "TEACHER_STATE_DIR": str(tmp_path),
    }
    command = [
        *(sys.executable, "-m", "pytest", str(HERE), "--quiet", "-p", "no:cacheprovider"),
        *("--ignore", str(PAGES), "--basetemp", str(tmp_path / "pytest")),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
