"""Client for the imitation library, which runs in its own Python environment and is controlled over pipes."""

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from agents.defaults import defaults_for
from teacher.envs.tasks import describe_task

_PROGRAM = Path(__file__).with_name("imitation_side.py")
_QUIET = {"PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_MEMBERS = 3


class Imitation:
    """Context manager that runs ``imitation_side.py`` and sends it requests.

    Args:
        python: path of a Python interpreter that has imitation installed.
        errors: file for the process's stderr; None prints it to the terminal.
    """

    def __init__(self, python: str, errors: IO[bytes] | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, "-P", str(_PROGRAM)],  # -P: don't import our modules next to the script
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**environment, **_QUIET, **_SINGLE},
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the response; ``do`` names a method of ``imitation_side.Side``.

        Raises:
            RuntimeError: the process ended; its stderr has the reason.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the imitation process ended with exit status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def train(self, env_id: str, steps: int, labels: int, seed: int) -> dict[str, Any]:
        """Train with our PPO hyperparameters and segment length; 0 labels means on the true reward."""
        row, task = defaults_for(env_id), describe_task(env_id)
        ppo = {
            "n_steps": row.ppo.num_steps,
            "batch_size": row.ppo.minibatch_size,
            "n_epochs": row.ppo.update_epochs,
            "learning_rate": row.ppo.learning_rate,
            "gamma": row.ppo.gamma,
            "gae_lambda": row.ppo.gae_lambda,
            "clip_range": row.ppo.clip_coef,
            "ent_coef": row.ppo.ent_coef,
            "vf_coef": row.ppo.vf_coef,
            "max_grad_norm": row.ppo.max_grad_norm,
        }
        return self.ask(
            "train",
            env_id=env_id,
            steps=steps,
            seed=seed,
            members=_MEMBERS,
            num_envs=row.num_envs,
            ppo=ppo,
            labels=labels,
            fragment_length=int(1.5 * task.fps),
        )

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
