"""A network of one's own in a run of ``teach``, as its page shows it."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from agents.numerics.correlation import rank_correlation
from teacher.teach import main
from teacher.training.builder import open_run

PAGE = (Path(__file__).parents[3] / "docs" / "own-network.md").read_text()


def write_module(folder: Path) -> list[str]:
    """The module of the page; the options of its command, with fewer steps."""
    (module,) = re.findall(r"^# my_network.py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (folder / "my_network.py").write_text(module)
    (command,) = re.findall(r"^teach (.*)", PAGE, re.MULTILINE)
    return [*shlex.split(command), *"-t 400 -i 100 -V".split()]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(sys.modules, "my_network", raising=False)


@pytest.mark.usefixtures("short_rollouts")
def test_a_run_learns_by_the_network_of_the_page_and_goes_on_with_it(tmp_path: Path) -> None:
    assert main(write_module(tmp_path)) == 0
    with open_run(Path("runs/Pendulum-v1/quadratic")) as run:
        assert run.teaching is not None
        predictor, dataset = run.teaching.predictor, run.teaching.dataset
        names = set(predictor.state_dict()["network"])
        returns = predictor.step_rewards(dataset.steps()).sum(axis=-1)
    assert any("factor" in name for name in names)
    assert rank_correlation(returns.ravel(), dataset.true_returns.ravel()) > 0.8


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ("--network my_network:missing", "--network: cannot import my_network:missing"),
        ("--network my_network:two", "got a reward of shape (2,) for two steps"),
        ("--network my_network:leaves", "got SystemExit: 0"),
        ("--network my_network:leaves_later", "got SystemExit: 0"),
        (
            "--network my_network:quadratic -p rl --teacher oracle",
            "--network: has no effect with -p rl; leave it out; got 'my_network:quadratic'",
        ),
    ],
)
def test_misfit_networks_are_refused_before_a_run(
    given: str, refusal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write_module(tmp_path)
    with (tmp_path / "my_network.py").open("a") as module:
        module.write("\n\ndef two(shape):\n    return nn.Linear(*shape, 2)\n")
        module.write("\n\ndef leaves(shape):\n    raise SystemExit(0)\n")
        module.write(
            "\n\nclass Leaving(nn.Linear):\n    def forward(self, x):\n        raise SystemExit(0)\n"
        )
        module.write("\n\ndef leaves_later(shape):\n    return Leaving(*shape, 1)\n")
    assert main([*options, *given.split()]) == 2
    assert refusal in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
