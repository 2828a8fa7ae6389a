"""Short runs, built but not started."""

import dataclasses
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from teacher.settings.config import RunSettings
from teacher.training.builder import build_run, prepared_directory
from teacher.training.run import Run
from teacher.training.start import check
from tests.teacher.conftest import config_in


def short_run(parts: ExitStack, folder: Path, console: Console, **settings: Any) -> Run:
    """A run of rollouts of 64 steps, on 60 labels, of which 12 come before training."""
    facts = {"n_labels": 60, "pretrain_labels": 12, "pretrain_iters": 20, **settings}
    env_id = facts.pop("env_id", "InvertedPendulum-v1")
    plan = check(RunSettings(config_in(folder, env_id, **facts), uuid.uuid4()), console)
    parts.enter_context(prepared_directory(plan.settings))
    run = parts.enter_context(build_run(plan, console))
    run.agent.config = dataclasses.replace(run.agent.config, num_steps=64)  # type: ignore[misc, call-arg]
    return run
