"""Simulated studies of ``teach compare`` count answers, and notice if an interval doesn't hold."""

import numpy as np
import pytest

from benchmarks.compare_policies import study
from teacher.queries.kinds import KINDS
from teacher.runs.ranking import Ranking


def test_a_study_counts_answers_and_checks_its_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = np.arange(3.0)[:, None] + np.zeros((3, 4))
    held, needed = study(returns, KINDS["pair"], [0.0, 0.1], seed=0, adaptive=True, limit=150)
    assert held
    assert needed[3] == needed[2] == 10 < needed[1] <= needed[0] < 150
    monkeypatch.setattr(Ranking, "ranks", [(1, 1), (2, 2), (3, 3)])  # the reverse
    assert not study(returns, KINDS["pair"], [0.1], seed=0, adaptive=False, limit=10)[0]
