"""Test what is missing on a machine is said, with how to get it; what is there is tried for real."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from teacher.cli import doctor
from teacher.cli.doctor import Finding, Machine, examine
from teacher.extras import EXTRAS
from teacher.labeling.embedded_site import SiteHandle
from teacher.teach import main
from tests.servers import Handler, serving

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    for name in ("TEACHER_TOKEN", "TEACHER_STORAGE", "REDIS_URL", "MUJOCO_GL", "IMAGEIO_FFMPEG_EXE"):
        monkeypatch.delenv(name, raising=False)


def lines_of(out: str) -> dict[str, tuple[str, str]]:
    """State and remedy by what was looked for."""
    found, about = {}, ""
    for line in out.splitlines():
        if match := re.match(r"(ok|missing|optional) +(.+?)  +", line):
            about = match[2]
            found[about] = (match[1], "")
        elif line.startswith("  "):
            found[about] = (found[about][0], line.strip())
    return found


def test_all_that_is_needed_is_tried_and_here(
    site: SiteHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEACHER_TOKEN", site.token)
    assert main(["doctor", "--site_url", site.url, "--storage", "clips"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("Nothing is missing.\n")
    assert {"OpenGL", "ffmpeg", "storage", "labeling site", "Redis"} <= set(lines_of(said))
    assert re.search(r"renders MuJoCo with (egl|osmesa)", said)
    assert f"{site.url} responds and accepts the token" in said
    assert list(tmp_path.rglob("*.mp4")) == []


def test_library_output_is_not_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = f"import atexit; print('before'); atexit.register(print, 'after it')\n{doctor._DRAW}"
    monkeypatch.setattr(doctor, "_DRAW", noisy)
    drawn = "; clips of Gymnasium's own MuJoCo environments are drawn by the fast renderer"
    assert doctor._opengl() in (f"renders MuJoCo with {name}{drawn}" for name in ("egl", "osmesa"))


def test_each_thing_that_is_missing_comes_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for name, value in {
        "MUJOCO_GL": "broken",
        "IMAGEIO_FFMPEG_EXE": "/nowhere/ffmpeg",
        "TEACHER_TOKEN": "tt_wrong",
        "REDIS_URL": "redis://:secret@127.0.0.1:9/0",
    }.items():
        monkeypatch.setenv(name, value)
    line = [
        "doctor",
        "--site_url",
        "http://127.0.0.1:9",
        "--storage",
        "file/clips",
        "--runs_dir",
        "/proc/runs",
    ]
    assert main(line) == 1
    said = capsys.readouterr().out
    missing = {about: remedy for about, (state, remedy) in lines_of(said).items() if state == "missing"}
    assert set(missing) == {"OpenGL", "ffmpeg", "runs", "storage", "labeling site", "Redis"}
    assert "libegl1" in missing["OpenGL"]
    assert "imageio-ffmpeg" in missing["ffmpeg"]
    assert "--runs_dir" in missing["runs"]
    assert said.endswith("6 requirements are missing.\n")
    assert "MUJOCO_GL=broken" in said
    assert "Connection refused" in said
    assert "secret" not in said


def found(about: str, machine: Machine) -> Finding:
    """Return the result of one check."""
    return doctor.look(about, lambda: {"site": doctor._site, "redis": doctor._redis}[about](machine))


def test_a_wrong_token_and_none_are_told_apart(site: SiteHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("runs", "state", site.url, "s3://clips")
    without = found("site", machine)
    assert without.state == "missing"
    assert "TEACHER_TOKEN is not set" in without.detail
    monkeypatch.setenv("TEACHER_TOKEN", "tt_wrong")
    wrong = found("site", machine)
    assert wrong.state == "missing"
    assert wrong.detail.endswith("does not accept the token")
    assert "teach site token" in wrong.remedy


def test_the_site_of_this_machine_is_asked_where_it_runs(site: SiteHandle, tmp_path: Path) -> None:
    state_dir = str(site.state_dir)
    assert "responds and accepts the token" in found("site", Machine("runs", state_dir, None, None)).detail
    assert "starts it on this machine" in found("site", Machine("runs", str(tmp_path), None, None)).detail


class _Elsewhere(Handler):
    def do_GET(self) -> None:
        self.send_error(404)


@pytest.fixture
def another_server() -> Iterator[str]:
    with serving(_Elsewhere) as url:
        yield url


def test_another_server_is_no_labeling_site(another_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_TOKEN", "tt_any")
    finding = found("site", Machine("runs", "state", another_server, None))
    assert (finding.state, finding.remedy) == ("missing", "check the URL")


def test_invalid_redis_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("runs", "state", None, None)
    assert found("redis", machine).state == "ok"
    monkeypatch.setenv("REDIS_URL", "http://:secret@host")
    finding = found("redis", machine)
    assert finding.state == "missing"
    assert "secret" not in finding.detail


def test_every_extra_is_known_and_none_that_is_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"dev", "docs"}
    monkeypatch.setitem(EXTRAS, "atari", ("no_such_module", "Atari games"))
    monkeypatch.setattr("teacher.cli.doctor._opengl", str)
    findings = {finding.about: finding for finding in examine(Machine("runs", "state", None, None))}
    assert findings["atari"].state == "optional"
    assert findings["atari"].remedy == "pip install 'rl-teacher[atari]'"
    assert {finding.state for name, finding in findings.items() if name not in EXTRAS} == {"ok"}
