"""``teach site`` opens the site of runs that have ended, and runs its commands."""

import re
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from teacher.cli import site as command
from teacher.labeling.client import ExperimentSettings, FeedbackClient
from teacher.labeling.embedded_site import SiteHandle
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import save_config


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=sleep))


def new_run(folder: Path, name: str = "flip", **settings: object) -> str:
    """Save the settings of a run and return its directory."""
    values = (
        settings
        if "predictor" in settings
        else {"predictor": "human", "state_dir": str(folder / "state"), **settings}
    )
    config = TeachConfig(env_id="Pendulum-v1", name=name, runs_dir=str(folder / "runs"), **values)  # type: ignore[arg-type]
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    return str(config.run_dir)


def test_its_link_opens_all_pages(
    site: SiteHandle,
    interrupted: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = new_run(tmp_path, state_dir=str(site.state_dir))
    assert command.main([run]) == 0
    said = capsys.readouterr().out
    found = re.match(r"Open: (http://[^/]+/j/[0-9a-z]{17})\n  (.*)\n", said)
    assert found is not None
    assert found[2] == f"{site.url}/experiments/Pendulum-v1-flip/"
    with requests.Session() as browser:
        assert browser.get(found[1], timeout=60).url == f"{site.url}/"
        assert "Pendulum-v1-flip" not in browser.get(f"{site.url}/", timeout=60).text
        assert browser.get(f"{site.url}/admin/", timeout=60).url == f"{site.url}/admin/"
        page = browser.get(f"{site.url}/", timeout=60).text
    assert f"teach site --state_dir {site.state_dir}" in page  # for when it has stopped
    assert "teach site --state_dir" not in requests.get(f"{site.url}/", timeout=60).text


def test_commands_use_the_running_site(site: SiteHandle, capfd: pytest.CaptureFixture[str]) -> None:
    values = {"env_id": "x", "prompt": "Which?", "n_labels": 9, "fps": 20, "has_true_reward": True}
    client = FeedbackClient(site.url, site.token)
    client.put_experiment(ExperimentSettings(name="invited", run_id=uuid.uuid4(), **values))  # type: ignore[arg-type]
    client.close()
    assert command.main(["invite", "invited", "ada", "--state_dir", str(site.state_dir)]) == 0
    assert capfd.readouterr().out.startswith(f"{site.url}/j/")


def test_runs_without_own_site_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, rl = new_run(tmp_path), new_run(tmp_path, "rl", predictor="rl")
    far = new_run(tmp_path, "far", site_url="https://labels.example", storage="s3://clips")
    other = new_run(tmp_path, "other", state_dir=str(tmp_path / "elsewhere"))
    for words, reason in {
        (own,): f"--state_dir: there is no labeling site in {tmp_path}/state; pass the folder of one",
        ("invite", "a", "b", "--state_dir", str(tmp_path)): f"there is no labeling site in {tmp_path}; pass",
        (rl,): f"{rl} has no experiment on a site, because it was trained with -p rl",
        (far,): f"{far} uses the site at https://labels.example; open it there",
        (own, other): f"{other} and {own} use different sites; pass the runs of one site",
        ("--bind", "0.0.0.0"): "--bind: needs public_url",  # noqa: S104
        ("imvite",): "imvite/config.json does not exist",
    }.items():
        assert command.main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("teach site: ")
        assert reason in said
        assert said.count("\n") == 1
    assert not (tmp_path / "state").exists()
