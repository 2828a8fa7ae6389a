"""Generators of the pages with benchmark results and agent defaults."""

import contextlib
import dataclasses
import io
from collections.abc import Iterator, Mapping
from typing import Any

from agents.defaults import ATARI, BY_NAME, GENERAL, TaskDefaults
from agents.ppo import PPOConfig
from agents.trpo import TRPOConfig
from benchmarks import bpref, first_command
from benchmarks.figures import results
from benchmarks.results import load
from benchmarks.teaching_points import SIDES
from benchmarks.teaching_report import print_tables

_ABOUT_TEACHING = """\
# Label efficiency: all results

Every row of `benchmarks/teaching.jsonl`; the summary is [a page of its own](../benchmarks/labels.md).
Print these tables with `python -m benchmarks.teaching --show`.

Returns are interquartile means over seeds; parentheses contain 95 % bootstrap intervals. "f, area" uses the
mean return during training. Accuracy is that of the last predictor on held-out pairs, by quartile of the
difference in true return, smallest first; "late" is Spearman's correlation over the last quarter of the
run; Pearson's correlation is over whole episodes.

![Return against steps](../pictures/teaching-returns.png)

| side | options of `teach` |
| --- | --- |
"""
_ABOUT_BPREF = """\
# B-Pref's protocol: all results

Every row of `benchmarks/bpref.jsonl`; [a page of its own](../benchmarks/bpref.md) describes the columns. A
share is a return divided by that of the same agent on the true reward.
"""
_ABOUT_DEFAULTS = """\
# Agent defaults

`teach` chooses hyperparameters by the task's name without its version (`agents/defaults.py`). A row shows the
number of environments, the steps per rollout, and the values that differ from `PPOConfig` and `TRPOConfig`,
whose defaults are those of Stable-Baselines3 and sb3-contrib. rl-zoo is RL Baselines3 Zoo. SAC has the same
values on all tasks: `SACConfig`'s, which are Stable-Baselines3's, but train_freq 32, gradient_steps -1 and
learning_starts 1000, in one environment.
For a Box, TRPO's `target_kl` and `cg_damping` are multiplied by the number of action dimensions, over
which sb3-contrib averages.

"""


def result_pages() -> dict[str, str]:
    """Return the Markdown of the generated pages by name."""
    found = load(first_command.RESULTS)
    return {
        "teaching": teaching_page(),
        "first-command": first_command.page(found),
        "agent-defaults": _ABOUT_DEFAULTS + defaults_table(),
        "bpref": bpref_page(),
    }


def teaching_page() -> str:
    """Return the page with the tables of the label-efficiency benchmark, one per task."""
    rows = results()
    shown = {row.side for row in rows}
    sides = [f"| {side.title} | `{side.options}` |" for name, side in SIDES.items() if name in shown]
    with contextlib.redirect_stdout(io.StringIO()) as tables:
        print_tables(rows)
    lines = [
        f"## {line}" if ": " in line and not line.startswith("|") else line
        for line in tables.getvalue().splitlines()
    ]
    return _ABOUT_TEACHING + "\n".join([*sides, "", *lines, ""]).replace("| `` |", "| |")


def bpref_page() -> str:
    """Return the page with the tables of the B-Pref benchmark, one per task."""
    with contextlib.redirect_stdout(io.StringIO()) as tables:
        bpref.print_tables(bpref.rows(load(bpref.RESULTS)))
    return _ABOUT_BPREF + tables.getvalue()


def defaults_table() -> str:
    """Return a table of the agents' hyperparameters with a row per task."""
    rows = {"MuJoCo and all others": GENERAL, **BY_NAME, "Atari": ATARI}
    return "\n".join(
        ["| task | environments | PPO | TRPO | source |", "|---|---|---|---|---|", *_rows(rows), ""]
    )


def _rows(rows: Mapping[str, TaskDefaults]) -> Iterator[str]:
    for name, row in rows.items():
        ppo = [*_settings(row.ppo, PPOConfig()), *(["linear learning-rate decay"] * row.anneal)]
        trpo = _settings(row.trpo, TRPOConfig())
        cells = [name, str(row.num_envs), ", ".join(ppo), ", ".join(trpo), row.source]
        yield f"| {' | '.join(cells)} |"


def _settings(config: Any, usual: Any) -> list[str]:
    """Return the rollout length and all values that differ from the algorithm's defaults."""
    values = dataclasses.asdict(config)
    others = {
        name: value for name, value in values.items() if name != "num_steps" and value != getattr(usual, name)
    }
    return [f"num_steps {values['num_steps']}", *(f"{name} {value}" for name, value in others.items())]
