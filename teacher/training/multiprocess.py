"""Multi-process training, in which rank 0 leads and the other ranks follow.

Rank 0 handles labels, reward fits, checkpoints, the console and the site. Every rank steps its share of the
environments and computes its share of each agent update.
"""

import contextlib
import dataclasses
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence

import torch

from agents.base import Agent
from agents.distributed import ALONE, Ranks
from agents.errors import AgentError, RankLostError
from teacher.data.checkpoint import State, dump_state, parse_state
from teacher.errors import TeacherError
from teacher.interrupts import handle
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import RunSettings, TeachConfig, from_fields
from teacher.training.parts import RunPlan, make_agent, make_envs, make_predictor, predicted_rewards, task_of


class Followers:
    """Controls the other ranks from rank 0; does nothing if the run has only one process.

    All methods except :meth:`stop` raise :class:`RankLostError` if a rank is lost.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self._listening = True

    def begin(self, config: TeachConfig, env_seed: int | Sequence[int], agent: Agent) -> None:
        """Tell the other ranks to create their environments and a copy of rank 0's agent."""
        self._send({"config": dataclasses.asdict(config), "env_seed": env_seed, "agent": agent.state_dict()})

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        """Tell the other ranks to run their part of a round while rank 0 runs the ``with`` block."""
        self._listening = False
        self._send({})
        yield
        self._listening = True

    def share(self, predictor: RewardPredictor, critic_epochs: int) -> None:
        """Broadcast the predictor and the number of value-function refitting epochs to the other ranks."""
        if self.ranks.size > 1:
            self._send({"predictor": predictor.state_dict(), "critic_epochs": critic_epochs})

    def stop(self, status: int) -> None:
        """Tell the other ranks to exit with ``status``.

        In the middle of a round, does nothing: the other ranks exit when they lose the connection to rank 0.
        """
        if self._listening:
            with contextlib.suppress(RankLostError):
                self._send({"status": status})

    def _send(self, message: State) -> None:
        if self.ranks.size > 1:
            self.ranks.broadcast(dump_state(message))


def follow(ranks: Ranks) -> int:
    """Run this process as a follower until rank 0 ends the run or is lost; return the exit status."""
    # Ctrl-C and batch systems signal all processes. Only rank 0 acts on it: it saves and stops the
    # others.
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    handle(lambda number, _: interrupts.append(number))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for collectives to end
    try:
        message = _receive(ranks)
        return int(message["status"]) if "status" in message else _take_part(ranks, message)
    except (TeacherError, AgentError, OSError) as error:
        if not (interrupts and isinstance(error, RankLostError)):
            print(f"teach: rank {ranks.rank}: {error}", file=sys.stderr)
        return 1


def _receive(ranks: Ranks) -> State:
    return parse_state(ranks.broadcast())


def _take_part(ranks: Ranks, beginning: State) -> int:
    """Run a follower's training loop until rank 0 stops it, and return the exit status."""
    torch.set_num_threads(1)
    config = from_fields(beginning["config"])
    config = dataclasses.replace(config, device=ranks.device(config.device))
    task = dataclasses.replace(task_of(config), captures=False)  # only rank 0 renders clips
    plan = RunPlan(RunSettings(config, uuid.UUID(int=0)), task)
    predictor = None if config.predictor == "rl" else make_predictor(plan)
    with contextlib.closing(make_envs(plan, beginning["env_seed"], ranks)) as envs:
        agent = make_agent(config, envs)
        agent.ranks = ranks
        agent.load_state_dict(beginning["agent"])
        while "status" not in (message := _receive(ranks)):
            rollout = agent.collect()
            envs.drain()
            rewards, critic_epochs = rollout.rewards, 0
            if predictor is not None:
                shared = _receive(ranks)
                predictor.load_state_dict(shared["predictor"])
                rewards, critic_epochs = predicted_rewards(predictor, rollout), shared["critic_epochs"]
            agent.update(rollout, rewards, critic_epochs=critic_epochs)
    return int(message["status"])
