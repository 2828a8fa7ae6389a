"""Settings from a TOML file, overridden by the command line."""

import shlex
from pathlib import Path

import pytest

from teacher.errors import ConfigError
from teacher.teach import main, parse_arguments

FILE = """
env_id = "Pendulum-v1"
predictor = "synth"
name = "from-file"
n_labels = 40
num_timesteps = 3e4
schedule = "constant"

[reward]
members = 5

[queries]
selection = "random"

[agent]
name = "trpo"
gamma = 0.9
hidden_sizes = [32, 32]
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_a_file_says_the_same_as_the_options_of_its_names(path: Path) -> None:
    options = (
        "-e Pendulum-v1 -p synth -n from-file -l 40 -t 3e4 --schedule constant --reward.members 5 "
        "--queries.selection random -a trpo --agent.gamma 0.9 --agent.hidden_sizes 32,32"
    )
    found, wanted = (parse_arguments(shlex.split(line)).config for line in (f"--config {path}", options))
    assert dict(found.agent_settings) == {"gamma": 0.9, "hidden_sizes": [32, 32]}
    assert vars(found) | {"agent_settings": 0} == vars(wanted) | {"agent_settings": 0}


def test_the_command_line_overrides_the_file(path: Path) -> None:
    config = parse_arguments(
        shlex.split(f"--config {path} -l 80 --reward.members 2 --agent.gamma 0.8")
    ).config
    assert (config.n_labels, config.reward.members) == (80, 2)
    assert config.agent_settings["gamma"] == 0.8
    assert config.agent == "trpo"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = ", "is not valid TOML"),
        ("sed = 3", "unknown option sed; did you mean seed?"),
        ("[reward]\nmember = 3", r"unknown option reward\.member; did you mean reward\.members\?"),
        ("stages = []", "unknown option stages"),
        ("seed = 2026-01-01", "seed must be a string, number, boolean or array"),
        ('env_id = "x"\npredictor = "rl"\nname = "x"\nseed = "many"', "--seed: expected a whole number"),
    ],
)
def test_a_file_that_cannot_work_is_refused(path: Path, text: str, says: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        parse_arguments(["--config", str(path)])


def test_missing_or_misplaced_file_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "no.toml"]) == 2
    assert "--config: can't read no.toml: No such file" in capsys.readouterr().err
    assert main(["--config", str(path), "--resume", "runs/x"]) == 2
    assert "remove --config" in capsys.readouterr().err
