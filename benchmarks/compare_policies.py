"""Simulated studies of ``teach compare``: do its intervals hold, and how many answers do its questions save?

``python benchmarks/compare_policies.py`` trains PPO on ShortHopper, takes six policies of it at growing numbers
of steps, films nothing but sums the rewards of what films would show, and repeats studies with scripted labelers.
``--returns FILE`` reuses the returns of an earlier call. One line of JSON for each row goes to
``compare_policies.jsonl``.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from teacher.queries.kinds import KINDS
from teacher.queries.kinds.base import Kind
from teacher.runs.ranking import Answer, Ranking
from teacher.settings.teachers import Answerer, ErrorModel

STEPS = (4_000, 20_000, 40_000, 80_000, 160_000, 320_000)
STARTS = 20
LABELERS = 6
WIDTHS = (3, 2, 1, 0)
PANELS = {"10%": [0.1] * LABELERS, "30%": [0.3] * LABELERS, "10% and 30%": [0.1, 0.3] * (LABELERS // 2)}
LIMIT = 4000
_EVERY = 10  # answers between two looks

Returns = NDArray[np.float64]


def study(
    returns: Returns, kind: Kind, mistakes: Sequence[float], seed: int, *, adaptive: bool
) -> tuple[bool, dict[int, int]]:
    """Simulate a study until the order is known.

    Returns:
        Whether all intervals held at all looks, and the number of answers needed for each width.
    """
    random = np.random.default_rng(seed)
    count, starts = returns.shape
    truth = np.argsort(np.argsort(-returns.mean(1))) + 1
    labelers = [Answerer(ErrorModel(mistake=share), seed) for share in mistakes]
    answers: list[Answer] = []
    needed: dict[int, int] = {}
    held = True
    while len(answers) < LIMIT and 0 not in needed:
        ranking = Ranking.of(answers, count)
        asked: list[tuple[int, ...]] = []
        for _ in range(_EVERY):
            if adaptive:
                asked.append(ranking.next_question(kind.size, asked, random))
            else:
                asked.append(tuple(random.choice(count, kind.size, replace=False).tolist()))
        for items in asked:
            shown, start = tuple(random.permutation(items).tolist()), int(random.integers(starts))
            who = int(random.integers(len(labelers)))
            values = [float(returns[policy, start]) for policy in shown]
            said = kind.scripted(labelers[who], values, f"{who}/{len(answers)}")[0]
            answers.append(Answer(f"labeler-{who}", shown, kind.implied(said), start))
        ranking = Ranking.of(answers, count)
        held &= all(best <= true <= worst for (best, worst), true in zip(ranking.ranks, truth, strict=True))
        for width in WIDTHS:
            if ranking.width <= width:
                needed.setdefault(width, len(answers))
    return held, needed
