"""Simulated studies of ``teach compare``: do its intervals hold, and how many answers do its questions save?

``python benchmarks/compare_policies.py`` trains PPO on ShortHopper, keeps six policies of it, and repeats
studies in which scripted labelers see the returns of what films would show. It prints and appends one line of
JSON for each row to ``compare_policies.jsonl``. ``--run DIR`` reuses the policies of an earlier call.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from teacher.queries.kinds import KINDS
from teacher.queries.kinds.base import Kind
from teacher.runs.policies import config_for, play, read_sources
from teacher.runs.ranking import Answer, Ranking
from teacher.settings.teachers import Answerer, ErrorModel
from teacher.training.parts import task_of

STEPS = (4_000, 20_000, 40_000, 80_000, 160_000, 320_000)
STARTS, SECONDS = 20, 5.0
LABELERS = 6
WIDTHS = (3, 2, 1, 0)
PANELS = {"10%": [0.1] * LABELERS, "30%": [0.3] * LABELERS, "10% and 30%": [0.1, 0.3] * (LABELERS // 2)}
ROWS = [
    (kind, adaptive, panel)
    for kind, panel in (
        *(("pair", panel) for panel in PANELS),
        *((kind, "10% and 30%") for kind in ("graded", "best_worst")),
    )
    for adaptive in (True, False)
]
_EVERY = 10  # answers between two looks, at least; from then on a tenth of the answers

Returns = NDArray[np.float64]


def study(
    returns: Returns, kind: Kind, mistakes: Sequence[float], seed: int, *, adaptive: bool, limit: int
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
    while len(answers) < limit and 0 not in needed:
        ranking = Ranking.of(answers, count)
        asked: list[tuple[int, ...]] = []
        for _ in range(max(_EVERY, len(answers) // 10)):
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


def trained(folder: Path) -> list[str]:
    """Train a run, and return copies of its checkpoint after each number of steps."""
    teach, run = [sys.executable, "-m", "teacher"], folder / "ShortHopper-v1" / "ppo"
    begin = [
        "-p",
        "rl",
        "-e",
        "ShortHopper-v1",
        "-n",
        "ppo",
        "--agent",
        "ppo",
        "--runs_dir",
        str(folder),
        "--no_videos",
    ]
    for steps in STEPS:
        copy = run / f"step-{steps}.npz"
        if not copy.exists():
            options = ["--resume", str(run)] if run.exists() else begin
            subprocess.run([*teach, *options, "-t", str(steps)], check=True, stdout=subprocess.DEVNULL)
            shutil.copyfile(run / "checkpoint.npz", copy)
    return [str(run / f"step-{steps}.npz") for steps in STEPS]


def returns_of(policies: Sequence[str]) -> Returns:
    """Return the returns of what films show, by policy and start state."""
    sources = read_sources(policies)
    config = config_for(sources, None)
    assert config is not None
    task = task_of(config)
    shown = round(SECONDS * task.fps)
    played = [play(source, config, task, STARTS, seed=0) for source in sources]
    return np.array([[episode.true_rewards[:shown].sum() for episode in episodes] for episodes in played])


def main() -> None:
    """Run all simulated studies, and write their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("compare_policies_runs"))
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--limit", type=int, default=3000, help="answers after which a study ends")
    given = parser.parse_args()
    returns = returns_of(trained(given.run))
    print(f"mean returns: {', '.join(f'{mean:.0f}' for mean in returns.mean(1))}", flush=True)
    for name, adaptive, panel in ROWS:
        results = [
            study(returns, KINDS[name], PANELS[panel], seed, adaptive=adaptive, limit=given.limit)
            for seed in range(given.studies if adaptive else given.studies // 5)
        ]
        needed = {
            width: [min(given.limit, found.get(width, given.limit)) for _, found in results]
            for width in WIDTHS
        }
        row = {
            "kind": name,
            "mistakes": panel,
            "questions": "adaptive" if adaptive else "random",
            "studies": len(results),
            "limit": given.limit,
            "held": sum(held for held, _ in results),
            "answers": {width: round(float(np.mean(counts))) for width, counts in needed.items()},
        }
        print(json.dumps(row), flush=True)
        with Path(__file__).with_suffix(".jsonl").open("a") as file:
            file.write(f"{json.dumps(row)}\n")


if __name__ == "__main__":
    main()
