"""ONNX files act and predict in ONNX Runtime as in torch; ``make test-onnx`` runs this file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from huggingface_hub import ModelCard
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.portable import PortablePolicy
from teacher.datasets.network_files import TOLERANCE, save_onnx
from teacher.errors import ConfigError, DataError
from teacher.runs.policies import play, read_sources
from teacher.runs.saved_run import SavedRun
from teacher.teach import main
from tests.models import AGENTS, OTHER_AGENTS, PREDICTORS, AgentCase, PredictorCase

CASES = {**AGENTS, **OTHER_AGENTS}


def run(path: Path, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """The outputs of a file, in ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(None, dict(inputs))
    return outputs


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_policy_acts_like_the_agent(case: AgentCase, tmp_path: Path) -> None:
    agent, observations, path = case.agent(), case.observations(), tmp_path / "policy.onnx"
    policy = PortablePolicy(agent)
    difference = save_onnx(path, policy, {"observation": observations}, policy.outputs, new=True)
    assert difference <= TOLERANCE
    onnx.checker.check_model(str(path))
    for some in (observations, observations[:1]):
        action, *_ = run(path, {"observation": some})
        expected = agent.act(some, deterministic=True)
        assert action.dtype == expected.dtype
        np.testing.assert_allclose(action, expected, atol=TOLERANCE)


@pytest.mark.parametrize("case", PREDICTORS.values(), ids=PREDICTORS)
def test_a_predictor_gives_the_same_rewards(case: PredictorCase, tmp_path: Path) -> None:
    predictor, steps, path = case.predictor(), case.steps(20), tmp_path / "predictor.onnx"
    module = predictor.portable()
    inputs = {name: steps[name] for name in module.inputs}
    assert save_onnx(path, module, inputs, ["reward"], new=True) <= TOLERANCE
    for count in (20, 1):
        (reward,) = run(path, {name: array[:count] for name, array in inputs.items()})
        expected = predictor.rewards(*(array[:count] for array in steps.values()))
        np.testing.assert_allclose(reward, expected, atol=1e-5, rtol=1e-5)


class _Branching(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum() > 0 else -inputs


class _Random(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.rand_like(inputs)


class _Fixed(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * torch.ones(len(inputs), 1)  # len() makes the batch size a constant


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (_Branching(), "torch can't trace the network"),
        (_Random(), "onnxruntime's outputs differ from torch's by"),
        (_Fixed(), "onnxruntime can't run the exported network"),
    ],
)
def test_a_network_that_cannot_be_exported_is_one_line(module: nn.Module, says: str, tmp_path: Path) -> None:
    inputs = {"x": np.ones((9, 3), np.float32)}
    with pytest.raises(DataError, match=says) as caught:
        save_onnx(tmp_path / "a.onnx", module, inputs, ["y"], new=True)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_run_is_exported_with_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main("-p synth -e Pendulum-v1 -n a -l 8 -t 1 -i 30 -V --reward.hidden 8".split()) == 0
    capfd.readouterr()
    folder = Path("model")
    words = ["export", "runs/Pendulum-v1/a", "--onnx", str(folder)]
    assert main([*words, "--huggingface", str(folder)]) == 0
    assert main([*words, "--huggingface", str(folder)]) == 0  # replaces the first
    first, second, third, *_ = (said := capfd.readouterr()).out.splitlines()
    assert (
        f"{folder / 'policy.onnx'}: observation -> action, mean, std; differs from torch by at most" in first
    )
    assert f"{folder / 'predictor.onnx'}: next_state -> reward; differs from torch by at most" in second
    assert "for 1,000 random inputs" in second
    assert "to upload: hf upload YOU/model" in third
    assert len(said.out.splitlines()) == 6
    assert said.err == ""
    card = ModelCard.load(folder / "README.md").text
    assert "| `predictor.onnx` | the reward predictor: `next_state` to `reward` |" in card
    assert 'InferenceSession("policy.onnx")' in card

    source = SavedRun(Path("runs/Pendulum-v1/a"))
    observations = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
    action, *_ = run(folder / "policy.onnx", {"observation": observations})
    expected = source.load_agent().act(observations, deterministic=True)
    np.testing.assert_allclose(action, expected, atol=TOLERANCE)
    (reward,) = run(folder / "predictor.onnx", {"next_state": observations})
    predicted = source.load_predictor().rewards(observations, np.zeros((1000, 1)), observations)
    np.testing.assert_allclose(reward, predicted, atol=TOLERANCE)

    assert main(words) == 2  # without a card, nothing is replaced
    assert f"{folder / 'policy.onnx'} already exists" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="already exists"):
        save_onnx(folder / "policy.onnx", nn.Identity(), {"x": observations}, ["y"], new=True)

    sources = read_sources(["runs/Pendulum-v1/a", f"{folder}/policy.onnx"])
    ours, theirs = (play(each, source.config, source.task, starts=2, seed=3) for each in sources)
    assert ours[0].actions == pytest.approx(theirs[0].actions, abs=1e-4)
    Path(folder, "policy.onnx").write_bytes(b"")
    with pytest.raises(DataError, match=r"policy\.onnx is not an ONNX policy for Pendulum-v1: "):
        play(sources[1], source.config, source.task, starts=2, seed=3)
