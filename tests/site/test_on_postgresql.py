"""The site's tests once more, on a real PostgreSQL: locks, clocks and isolation differ from SQLite's.

``DATABASE_URL=postgresql://... SECRET_KEY=... pytest tests/site`` runs all of them on a server of one's own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CONTRACT = TESTS / "contract" / "test_site.py"
# Settings, files, arithmetic, and who may do what: a second database would tell nothing new.
SAME_ON_ANY_DATABASE = (
    "pages/test_accounts.py",
    "pages/test_chart.py",
    "pages/test_label_page.py",
    "pages/test_markup.py",
    "production",  # its databases are its own
    "test_access.py",
    "test_aggregation.py",
    "test_celery_app.py",
    "test_commands.py",
    "test_embedded.py",
    "test_logs.py",
    "test_media.py",
    "test_on_postgresql.py",
    "test_schema.py",
    "test_security.py",
    "test_settings.py",
    "test_storage_setup.py",
    "test_without_redis.py",
)
# Parts of names of tests: where clips are, who may do what, where links lead, and files that are damaged.
SAME_IN_NAME = ("s3", "each_role", "to_its_login", "whom_somebody_names", "lead_to_pages", "damaged")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_site_passes_its_tests_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = inherited | {
        "DATABASE_URL": postgres_url,
        "SECRET_KEY": "only-for-tests-" + "x" * 40,
        "TEACHER_STATE_DIR": str(tmp_path),
    }
    command = [
        *(sys.executable, "-m", "pytest", str(TESTS / "site"), str(CONTRACT), "--quiet"),
        *("-p", "no:cacheprovider", "--basetemp", str(tmp_path / "pytest")),
        *(f"--ignore={TESTS / 'site' / path}" for path in SAME_ON_ANY_DATABASE),
        *("-k", " and ".join(f"not {name}" for name in SAME_IN_NAME)),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1700)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
