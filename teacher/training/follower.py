"""What the ranks other than 0 do in a run: step environments of their own and train on them, in silence."""

import contextlib
import dataclasses
import signal
import sys

import torch

from agents.distributed import Ranks
from agents.errors import AgentError, RankLostError
from teacher.data.checkpoint import State
from teacher.envs.tasks import task_of
from teacher.errors import TeacherError
from teacher.settings.config import from_fields
from teacher.training.crew import hear
from teacher.training.run import make_agent, make_envs, make_predictor, predicted_rewards


def follow(ranks: Ranks) -> int:
    """Take part in the run that rank 0 leads, until it says stop or is gone; returns the exit status."""
    # Ctrl-C reaches all processes of a terminal: rank 0 saves, and that ends the others too.
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's own handlers wait for collectives to end
    try:
        word = hear(ranks)
        return int(word["status"]) if "status" in word else _take_part(ranks, word)
    except (TeacherError, AgentError, OSError) as error:
        if not (interrupts and isinstance(error, RankLostError)):
            print(f"teach: rank {ranks.rank}: {error}", file=sys.stderr)
        return 1


def _take_part(ranks: Ranks, beginning: State) -> int:
    """Rank 0's loop without all that only rank 0 does."""
    torch.set_num_threads(1)
    config = from_fields(beginning["config"])
    config = dataclasses.replace(config, device=ranks.device(config.device))
    task = dataclasses.replace(task_of(config), captures=False)  # only rank 0 has anything to show
    predictor = None if config.predictor == "rl" else make_predictor(config, task)
    with contextlib.closing(make_envs(config, task, beginning["env_seed"], ranks)) as envs:
        agent = make_agent(config, envs)
        agent.ranks = ranks
        agent.load_state_dict(beginning["agent"])
        while "status" not in (word := hear(ranks)):
            rollout = agent.collect()
            envs.drain()
            rewards, critic_epochs = rollout.rewards, 0
            if predictor is not None:
                shared = hear(ranks)
                predictor.load_state_dict(shared["predictor"])
                rewards, critic_epochs = predicted_rewards(predictor, rollout), shared["critic_epochs"]
            agent.update(rollout, rewards, critic_epochs=critic_epochs)
    return int(word["status"])
