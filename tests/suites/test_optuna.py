"""The program for Optuna on the page on sweeps; ``make test-tracking`` runs this file."""

from pathlib import Path

import optuna
import pytest

from tests.documents import blocks_of, page_of, run_program

MEDIAN = "optuna.pruners.MedianPruner()"
AFTER_ONE_SEED = "optuna.pruners.ThresholdPruner(lower=1e9, n_warmup_steps=2)"


@pytest.mark.parametrize(
    ("pruner", "state", "seeds"),
    [(MEDIAN, optuna.trial.TrialState.COMPLETE, 3), (AFTER_ONE_SEED, optuna.trial.TrialState.PRUNED, 2)],
)
@pytest.mark.filterwarnings("default")  # of other libraries
def test_trials_are_scored_or_pruned(
    pruner: str, state: optuna.trial.TrialState, seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (library,), (program,) = blocks_of(page_of("sweeps"), "python"), blocks_of(page_of("sweeps"), "py")
    short = program.replace("n_trials=20", "n_trials=2").replace(MEDIAN, pruner)
    run_program(library.partition("draw = ")[0] + short, tmp_path / "sweep.py")
    (study,) = optuna.get_all_study_summaries("sqlite:///sweep.db")
    trials = optuna.load_study(study_name=study.study_name, storage="sqlite:///sweep.db").trials
    assert [trial.state for trial in trials] == [state] * 2
    assert {trial.params["members"] for trial in trials} <= {2, 3, 4, 5}
    runs = [path.name for path in (tmp_path / "sweep").glob("*/trial*")]
    assert len(runs) == 2 * seeds
