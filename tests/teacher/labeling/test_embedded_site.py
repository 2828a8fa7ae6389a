"""One site for each state folder, whoever starts, stops or is killed."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import requests

from teacher.errors import ConfigError, SiteUnreachableError
from teacher.labeling import embedded_site
from teacher.labeling.client import ExperimentSettings, FeedbackClient
from teacher.labeling.embedded_site import PACKAGES, SiteHandle, ensure_site
from tests.reverse_proxy import reverse_proxy
from tests.teacher.labeling.conftest import MakeState, announced, is_held, kill_site
from tests.waiting import wait_until

HASTY_SITE = """
import sys
from human_feedback_site import embedded
embedded.GRACE_SECONDS = 0.5
sys.exit(embedded.main())
"""
HOLD_SITE = f"""
import sys, pathlib, teacher.labeling.embedded_site as embedded
embedded.COMMAND = (sys.executable, "-c", {HASTY_SITE!r})
site = embedded.ensure_site(pathlib.Path(sys.argv[1]))
print(site.instance_id, site.url, flush=True)
sys.stdin.read()
"""


def test_the_site_starts_where_its_package_is() -> None:
    """Also in a checkout that is not installed."""
    assert (PACKAGES / "human_feedback_site" / "embedded.py").is_file()


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """A state folder that does not exist yet, and whose site ends with the test."""
    yield tmp_path / "state"
    if is_held(tmp_path / "state"):
        kill_site(tmp_path / "state")


@pytest.fixture
def join() -> Iterator[Callable[..., SiteHandle]]:
    """Starts or joins a site for the length of the test."""
    with contextlib.ExitStack() as sites:

        def join_one(*arguments: Any, **options: Any) -> SiteHandle:
            site = ensure_site(*arguments, **options)
            sites.callback(site.release)
            return site

        yield join_one


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()]


def hold_site(state_dir: Path) -> "subprocess.Popen[str]":
    """A run in a process of its own that holds the site until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD_SITE, str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def livez(site: SiteHandle) -> Any:
    return requests.get(f"{site.url}/livez", timeout=60).json()["instance"]


def test_concurrent_runs_share_one_site(state_dir: Path) -> None:
    runs = [hold_site(state_dir) for _ in range(2)]
    lines = [run.stdout.readline() for run in runs if run.stdout]
    assert lines[0] == lines[1] != ""
    for run in runs:  # kill -9, so that only the kernel can say that they are gone
        assert is_held(state_dir)
        run.kill()
        run.communicate()
    wait_until(lambda: not is_held(state_dir))
    assert announced(state_dir)["url"] is None
    assert list((state_dir / "site" / "runs").iterdir()) == []


def test_site_outlives_a_break_and_is_revived(join: Any, mortal_state: Path) -> None:
    first = join(mortal_state)
    first.release()
    wait_until(
        lambda: list((mortal_state / "site" / "runs").iterdir()) == []
    )  # it has seen that nobody is there
    site = join(mortal_state)  # one that is resumed at once finds the site still there
    assert livez(site) == site.instance_id == first.instance_id
    site.revive()  # nothing to do: it answers
    assert announced(mortal_state)["instance"] == site.instance_id
    kill_site(mortal_state)
    wait_until(lambda: not is_held(mortal_state))
    site.revive()
    wait_until(lambda: announced(mortal_state)["instance"] != site.instance_id)
    assert livez(site) == announced(mortal_state)["instance"]


def is_free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_site_ends_whose_state_folder_is_moved_or_deleted(
    join: Any, make_state: MakeState, state_dir: Path, how: str
) -> None:
    site = join(make_state(state_dir))
    elsewhere, new_lock = state_dir.with_name("elsewhere"), state_dir / "site" / "lock"
    with new_lock.open() as lock, (state_dir / "site.log").open() as log:
        if how == "deleted":
            shutil.rmtree(state_dir)
        else:
            state_dir.rename(elsewhere)
        if how == "replaced":
            new_lock.parent.mkdir(parents=True)
            new_lock.write_text("{}")
        wait_until(lambda: is_free(lock))
        line = f"{state_dir} was moved or deleted, so its site is shutting down"
        assert [each.endswith(line) for each in log.read().splitlines()].count(True) == 1
    if how == "replaced":
        assert new_lock.read_text() == "{}"
        return
    site.revive()  # it cannot
    assert not state_dir.exists()
    if how == "moved":
        elsewhere.rename(state_dir)

        def is_revived() -> bool:
            site.revive()  # again and again, as a run does: the process of before may just be about to end
            return bool(announced(state_dir)["instance"] != site.instance_id)

        wait_until(is_revived)
        assert livez(site) == announced(state_dir)["instance"]


def test_port_is_free_once_the_lock_is(join: Any, mortal_state: Path) -> None:
    site = join(mortal_state)
    master = announced(mortal_state)["pid"]
    (worker,) = workers_of(master)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in workers_of(master) and workers_of(master) != [])
    wait_until(lambda: livez(site) == site.instance_id)  # the master has started another
    os.kill(master, signal.SIGKILL)
    wait_until(lambda: not is_held(mortal_state))
    joined = join(mortal_state)
    assert (joined.url, joined.sign_in_url) == (site.url, site.sign_in_url)  # printed links keep working
    assert joined.instance_id != site.instance_id


def test_ctrl_c_of_a_run_does_not_reach_the_site(site: SiteHandle) -> None:
    pid = announced(site.state_dir)["pid"]
    assert os.getsid(pid) == os.getpgid(pid) == pid


def test_secrets_are_for_their_owner_only(site: SiteHandle) -> None:
    for name in ("token", "site/lock"):
        assert stat.S_IMODE((site.state_dir / name).stat().st_mode) == 0o600
    assert site.token.startswith("tt_")


@pytest.fixture(scope="module")
def public_state(
    make_state: Any, site: SiteHandle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of a site for others; in it lay the announcement of a dead one, whose port is taken."""
    state_dir = make_state(tmp_path_factory.mktemp("public-site") / "state")
    lock = state_dir / "site" / "lock"
    lock.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        lock.write_text(json.dumps({"pid": 2**30, "instance": "dead", "url": site.url, "port": taken}))
        held = ensure_site(state_dir, bind="0.0.0.0", public_url="http://labels.example:8080")  # noqa: S104
        assert held.url not in (site.url, f"http://127.0.0.1:{taken}")
    yield state_dir
    held.release()


def test_a_file_of_a_dead_site_misleads_nobody(join: Any, public_state: Path, site: SiteHandle) -> None:
    own = join(public_state)
    assert own.instance_id not in ("dead", site.instance_id)
    assert livez(own) == own.instance_id


@pytest.mark.parametrize(
    ("database", "reason"),
    [
        ("damaged", ".*not a database"),
        (
            "newer",
            r"Error: The database .* newer version of RL-Teacher \(migration 9999_later\); use that version.",
        ),
    ],
)
def test_a_site_that_cannot_start_says_why_in_one_line(
    join: Any, state_dir: Path, migrated_database: Path, database: str, reason: str
) -> None:
    state_dir.mkdir()
    path = Path(shutil.copy(migrated_database, state_dir))
    if database == "damaged":
        path.write_text("this is no database, and long enough to be told from one" * 20)
    else:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("INSERT INTO django_migrations VALUES (999, 'feedback', '9999_later', '')")
    with pytest.raises(SiteUnreachableError, match=rf"did not start: {reason} \(see .*site\.log") as error:
        join(state_dir)
    assert "\n" not in str(error.value)


def test_the_reason_is_the_last_line_with_words(tmp_path: Path) -> None:
    (tmp_path / "site.log").write_text("[Traceback (most recent call last):\nImportError: no waitress\n]\n\n")
    assert (
        embedded_site._StateFolder(tmp_path, {})
        ._last_log_line(0)
        .startswith("ImportError: no waitress (see ")
    )


def test_reachable_at_public_address(join: Any, public_state: Path, experiment: ExperimentSettings) -> None:
    site = join(public_state)  # who asks for nothing special joins
    client = FeedbackClient(site.url, site.token)
    assert client.put_experiment(experiment).invite_url.startswith("http://labels.example:8080/j/")
    client.close()
    status = {
        host: requests.get(f"{site.url}/livez", headers={"Host": host}, timeout=60).status_code
        for host in ("labels.example:8080", "elsewhere.example")
    }
    assert status == {"labels.example:8080": 200, "elsewhere.example": 400}
    with pytest.raises(ConfigError, match=r"is already running with http://labels\.example:8080"):
        join(public_state, public_url="http://other.example")


def test_reachable_below_a_path(join: Any, state_dir: Path, experiment: ExperimentSettings) -> None:
    with reverse_proxy() as proxy:
        site = join(state_dir, public_url=f"{proxy.url}/teacher")
        proxy.sites["/teacher"] = site.url
        client = FeedbackClient(site.url, site.token)
        told = client.put_experiment(experiment)
        client.close()
        for proxy.cuts in (False, True):
            assert requests.get(told.invite_url, timeout=60).url == told.label_url
    assert told.label_url == f"{proxy.url}/teacher/experiments/{experiment.name}/label"


def test_a_path_that_cannot_be_told_from_the_sites_own_is_refused(join: Any, state_dir: Path) -> None:
    with pytest.raises(
        SiteUnreachableError, match=r"can't be /api, .*; use a different one, such as /teacher"
    ):
        join(state_dir, public_url="http://labels.example/api")


def test_a_new_state_folder_is_its_owners_alone(site: SiteHandle) -> None:
    assert stat.S_IMODE(site.state_dir.stat().st_mode) == 0o700


def test_a_site_on_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "lock").write_text(json.dumps({"host": "gpu-7", "port": 8000, "url": None}))
    monkeypatch.setattr(embedded_site, "COMMAND", (sys.executable, "-c", "pass"))  # as if it were locked
    with pytest.raises(ConfigError) as caught:
        ensure_site(tmp_path)
    assert str(caught.value) == (
        f"--state_dir: the site in {tmp_path} runs on gpu-7; run there, or with --site_url and the site's "
        "public URL, or choose a different --state_dir"
    )
