"""A predictor against answers it was not fitted to, the commands that do it, and contradicting labels."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from teacher.data.preferences import Preference, PreferenceDataset, bootstrap_weights
from teacher.data.segments import Segment
from teacher.datasets.predictor_files import load_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.errors import DataError
from teacher.reward.evaluation import evaluate
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import UNDECIDED, find_contradictions
from teacher.settings.options import RewardConfig
from teacher.teach import main
from tests.teacher.conftest import make_segment

Pair = tuple[Segment, Segment]
SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)


@pytest.fixture
def pairs() -> Sequence[Pair]:
    return [(make_segment(2 * number), make_segment(2 * number + 1)) for number in range(120)]


def answers(pairs: Sequence[Pair], first: int = 0) -> PreferenceDataset:
    """By the true return; every tenth pair is called equal."""
    dataset = PreferenceDataset()
    for number, (one, other) in enumerate(pairs, first):
        value = 0.5 if number % 10 == 0 else float(one.true_return > other.true_return)
        dataset.upsert([Preference(UUID(int=(number << 70) + number), one, other, value)])
    return dataset


@pytest.fixture
def fitted(pairs: Sequence[Pair]) -> RewardPredictor:
    predictor = RewardPredictor(*SPACES, RewardConfig(hidden=16, features="plain"), seed=1)
    predictor.fit(answers(pairs[:80]), max_epochs=30)
    return predictor


def test_an_evaluation_is_what_the_definitions_say(fitted: RewardPredictor, pairs: Sequence[Pair]) -> None:
    from scipy.stats import spearmanr

    held_out = answers(pairs[80:], 80)
    found = evaluate(fitted, held_out)
    returns = [fitted.member_returns(side) for side in zip(*pairs[80:], strict=True)]
    logits = returns[0] - returns[1]
    chance = (0.9 / (1 + np.exp(-logits)) + 0.05).mean(axis=0)
    value = held_out.values.astype(np.float64)
    losses = -(value * np.log(chance) + (1 - value) * np.log(1 - chance))
    assert found.pairs == 40
    assert found.loss == pytest.approx(losses.mean(), rel=1e-4)
    right = np.where(value == 0.5, abs(chance - 0.5) < 0.25, (chance > 0.5) == (value > 0.5))
    assert found.accuracy == pytest.approx(right.mean())
    truth = np.array([one.true_return - other.true_return for one, other in pairs[80:]])
    assert found.rank_correlation == pytest.approx(spearmanr(logits.mean(axis=0), truth).statistic, abs=1e-3)
    assert sum(group.pairs * group.accuracy for group in found.margins) == pytest.approx(right.sum())
    edges = [group.low for group in found.margins] + [found.margins[-1].high]
    assert edges == sorted(edges)
    assert found.margins[-1].high == pytest.approx(abs(truth).max(), rel=1e-5)
    gap = 0.0
    for group in found.certainties:
        of_group = (np.maximum(chance, 1 - chance) >= group.low) & (
            np.maximum(chance, 1 - chance) < group.high
        )
        assert group.pairs == of_group.sum()
        assert group.predicted == pytest.approx(np.maximum(chance, 1 - chance)[of_group].mean(), rel=1e-4)
        assert group.answered == pytest.approx(np.where(chance > 0.5, value, 1 - value)[of_group].mean())
        gap += abs(group.predicted - group.answered) * group.pairs / 40
    assert found.calibration_error == pytest.approx(gap)
    assert found.accuracy > 0.7


def test_no_margins_without_true_returns(fitted: RewardPredictor) -> None:
    pairs = [(make_segment(n, true_return=0.0), make_segment(n + 50, true_return=0.0)) for n in range(8)]
    found = evaluate(fitted, answers(pairs))
    assert found.margins == []
    assert np.isnan(found.rank_correlation)
    assert found == replace(found, rank_correlation=float("nan"))


def test_a_predictor_that_is_sure_and_wrong_without_label_noise_loses_all() -> None:
    predictor = RewardPredictor(*SPACES, RewardConfig(label_noise=0.0, members=1, hidden=4), seed=1)
    state = {name: value * 1e6 for name, value in predictor._learner.network.state_dict().items()}
    predictor._learner.network.load_state_dict(state)
    losses = []
    for value in (0.0, 1.0):
        dataset = PreferenceDataset()
        dataset.upsert([Preference(UUID(int=1), make_segment(0), make_segment(1), value)])
        losses.append(evaluate(predictor, dataset).loss)
    assert sorted(losses) == [0.0, np.inf]


def test_foreign_dataset_is_refused(fitted: RewardPredictor) -> None:
    dataset = PreferenceDataset()
    pair = make_segment(1, observation_size=4), make_segment(2, observation_size=4)
    dataset.upsert([Preference(UUID(int=1), *pair, 1.0)])
    with pytest.raises(DataError, match="the observations must belong to the space Box"):
        evaluate(fitted, dataset)
    fitted.env_id = "Other-v0"
    with pytest.raises(DataError, match=r"labels are from Any-v0, .* fitted to Other-v0"):
        evaluate(fitted, dataset)
    fitted.env_id = "Reach"  # without a version it is no id
    with pytest.raises(DataError, match="the observations must belong to the space Box"):
        evaluate(fitted, dataset)
    with pytest.raises(DataError, match="dataset without labels"):
        evaluate(fitted, PreferenceDataset())


@pytest.fixture
def files(pairs: Sequence[Pair], tmp_path: Path) -> tuple[Path, Path]:
    """Return labels to fit to, and others."""
    paths = tmp_path / "labels.npz", tmp_path / "others.parquet"
    save_preferences(paths[0], answers(pairs[:80]), *SPACES)
    save_preferences(paths[1], answers(pairs[80:], 80), *SPACES)
    return paths


def test_a_predictor_is_fitted_and_evaluated_by_command(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, others = map(str, files)
    saved = str(tmp_path / "reward.npz")
    line = ["fit", labels, saved, "--evaluate", others, "--max_updates", "6e1"]
    line += ["--reward.members", "2", "--reward.features", "plain"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert f"{saved}: fitted to 80 preferences on Any-v0 in 60 updates" in said
    assert load_predictor(Path(saved)).config.members == 2
    assert main(["evaluate", saved, others, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert f"{others}: accuracy {found['accuracy']:.1%} on 40 labels" in said
    assert main(["evaluate", saved, others]) == 0
    assert capsys.readouterr().out in said


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        (
            "fit labels.npz reward.pt",
            2,
            "teach fit: the predictor file must be named *.npz, not reward.pt",
        ),
        (
            "fit labels.npz no/reward.npz",
            2,
            "teach fit: cannot write no/reward.npz: there is no folder no; create it first",
        ),
        ("fit nothing.npz reward.npz", 1, "teach fit: nothing.npz does not exist"),
        (
            "fit labels.npz reward.npz --reward.members 0",
            2,
            "teach fit: --reward.members: expected 1 or more",
        ),
        (
            "fit labels.npz reward.npz --max_updates 0",
            2,
            "teach fit: --max_updates must be at least 1, not 0",
        ),
        (
            "fit labels.npz reward.npz --max_updates -1e3",
            2,
            "teach fit: --max_updates must be at least 1, not -1000",
        ),
        (
            "fit labels.npz reward.npz --max_updates 1.5",
            2,
            "teach fit: argument --max_updates: expected a whole number such as 1400 or 5e6, got '1.5'",
        ),
        ("fit labels.npz labels.npz", 2, "teach fit: labels.npz already exists; choose another name"),
        (
            "fit labels.npz reward.npz --reward.epochs 3",
            2,
            "teach fit: --reward.epochs: has no effect in a single fit",
        ),
        (
            "fit labels.npz reward.npz --reward.image_dropout 0.1",
            2,
            "teach fit: --reward.image_dropout: has no effect when observations",
        ),
        (
            "fit labels.npz reward.npz --reward.initial_epochs 3 --max_updates 5",
            2,
            "teach fit: --max_updates: has no effect with --reward.initial_epochs, which",
        ),
        ("fit labels.npz", 2, "teach fit: the following arguments are required: predictor"),
        (
            "evaluate labels.npz labels.npz",
            1,
            "teach evaluate: labels.npz is an .npz file but not",
        ),
        ("relabel labels.npz a b", 1, "teach relabel: labels.npz is an .npz file but not"),
        ("import nowhere labels.npz", 2, "teach import: labels.npz already exists"),
    ],
)
def test_errors_are_one_line(
    line: str,
    status: int,
    says: str,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files[0].parent)
    try:
        found = main(line.split())
    except SystemExit as exit_:
        found = int(exit_.code or 0)
    said = capsys.readouterr()
    assert found == status
    assert said.err.startswith(says)
    assert said.err.count("\n") == 1
    assert {path.name for path in Path().iterdir()} == {"labels.npz", "others.parquet"}


def test_a_fit_heeds_how_often_it_goes_through_how_many_answers(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--reward.initial_epochs", "5", "--reward.max_preferences", "30"]
    assert main(["fit", str(files[0]), str(tmp_path / "reward.npz"), *words]) == 0
    assert "fitted to 30 preferences on Any-v0 in 5 updates" in capsys.readouterr().out


def test_a_fit_to_answers_that_tell_nothing_says_so(
    pairs: Sequence[Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = PreferenceDataset()
    dataset.upsert(Preference(UUID(int=number), *pair, 0.5) for number, pair in enumerate(pairs[:9]))
    save_preferences(tmp_path / "equal.npz", dataset, *SPACES)
    line = ["fit", str(tmp_path / "equal.npz"), str(tmp_path / "reward.npz"), "--max_updates", "5"]
    assert main(line) == 0
    assert capsys.readouterr().out.splitlines()[-1] == UNDECIDED


def fit_one(number: int, pair: Pair, folder: Path) -> tuple[int, Path]:
    """``teach fit`` to one preference, of whose UUID each member's share follows; its status and file."""
    dataset, saved = PreferenceDataset(), folder / "reward.npz"
    dataset.upsert([Preference(UUID(int=number), *pair, 1.0)])
    save_preferences(folder / "one.npz", dataset, *SPACES)
    line = ["fit", str(folder / "one.npz"), str(saved), "--max_updates", "20", "--reward.members", "3"]
    return main(line), saved


def one_whose_weights_are(fits: Callable[[NDArray[np.float32]], Any]) -> int:
    ids = ((0, number) for number in count())
    return next(id_[1] for id_ in ids if fits(bootstrap_weights(np.array([id_], np.uint64), 3)))


def test_a_fit_says_where_nothing_was_held_out(
    pairs: Sequence[Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, saved = fit_one(one_whose_weights_are(lambda weights: weights.all()), pairs[0], tmp_path)
    said = capsys.readouterr().out
    assert (status, saved.exists()) == (0, True)
    assert "no held-out labels to evaluate the predictor on (training loss 0." in said
    assert "nan" not in said


def test_a_predictor_that_learned_nothing_is_not_saved(
    pairs: Sequence[Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = one_whose_weights_are(lambda weights: not weights.any())
    assert fit_one(number, pairs[0], tmp_path) == (1, tmp_path / "reward.npz")
    said = capsys.readouterr().err
    assert said.startswith(
        "teach fit: nothing was learned, because every ensemble member holds out the whole dataset (1 pref"
    )
    assert said.count("\n") == 1
    assert not (tmp_path / "reward.npz").exists()


def test_teach_relabels_trajectories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gymnasium.spaces import Discrete

    from teacher.datasets.predictor_files import save_predictor

    source = Path(__file__).parents[1] / "datasets" / "trajectories" / "data" / "imitation"
    spaces = Box(-np.inf, np.inf, (4,)), Discrete(2)
    save_predictor(tmp_path / "p.npz", RewardPredictor(*spaces, RewardConfig(), seed=1), *spaces)
    assert main(["import", str(source), str(tmp_path / "a.npz")]) == 0
    assert "2 episodes, 10 steps" in capsys.readouterr().out
    assert main(["relabel", *(str(tmp_path / name) for name in ("p.npz", "a.npz", "b.npz"))]) == 0
    assert f"{tmp_path / 'a.npz'} with rewards from" in capsys.readouterr().out


def labels_with(
    mistakes: float, count: int, spread: float, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logits of a predictor, and labels of which a share is wrong."""
    random = np.random.default_rng(seed)
    logits = spread * random.normal(size=count)
    labels = random.random(count) < expit(logits)
    return logits, (labels ^ (random.random(count) < mistakes)).astype(np.float64)


@pytest.mark.parametrize("mistakes", [0.0, 0.1, 0.2, 0.3, 0.4])
def test_the_estimate_is_the_share_of_mistakes(mistakes: float) -> None:
    logits, labels = labels_with(mistakes, 20_000, spread=10)
    found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found is not None
    assert found.share == pytest.approx(mistakes, abs=0.015)
    assert found.at_least <= found.share <= found.at_least + 0.03


@pytest.mark.parametrize("seed", range(3))
def test_the_estimate_maximizes_the_likelihood(seed: int) -> None:
    logits, labels = labels_with(0.25, 500, spread=6, seed=seed)

    def loss(parameters: NDArray[np.float64]) -> float:
        scale, wrong = np.exp(parameters[0]), 0.5 * expit(parameters[1])
        chance = wrong + (1 - 2 * wrong) * expit(scale * logits * (2 * labels - 1))
        return float(-np.log(chance).sum())

    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead")
    found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found is not None
    assert found.share == pytest.approx(0.5 * expit(best.x[1]), abs=0.02)


def test_fewer_than_at_least_are_rare() -> None:
    below = 0
    for seed in range(200):
        logits, labels = labels_with(0.25, 300, spread=6, seed=seed)
        found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
        assert found is not None
        below += found.at_least > 0.25
    assert 2 <= below <= 20


def test_close_calls_contradict_nothing() -> None:
    logits, labels = labels_with(0.25, 300, spread=0.3)
    found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found is not None
    assert found.at_least == 0


def test_ties_are_no_mistakes() -> None:
    logits, labels = labels_with(0.2, 400, spread=8)
    expected = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    with_ties = [np.concatenate([logits, np.full(100, 9.0)]), np.concatenate([labels, np.full(100, 0.5)])]
    assert find_contradictions(*map(torch.from_numpy, with_ties)) == expected
    assert find_contradictions(torch.zeros(1000), torch.full((1000,), 0.5)) is None


def test_few_labels_give_no_estimate() -> None:
    logits, labels = (torch.from_numpy(values) for values in labels_with(0.2, 50, spread=8))
    assert find_contradictions(logits[:49], labels[:49]) is None
    assert find_contradictions(logits, labels) is not None


def test_extreme_returns_give_finite_estimates() -> None:
    logits = torch.tensor([1e30, -1e30] * 50)
    found = find_contradictions(logits, torch.tensor([1.0, 1.0] * 50))
    assert found is not None
    assert found.share == pytest.approx(0.49)
