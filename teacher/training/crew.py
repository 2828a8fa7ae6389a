"""The other processes of a run, as rank 0 leads them.

Labels, the predictor's fits, checkpoints and everything that people see are rank 0's alone. The others
(``teacher/training/follower.py``) hear what to do from it: to begin, to take part in one more round, to stop.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from agents.base import Agent
from agents.distributed import ALONE, Ranks
from agents.errors import RankLostError
from teacher.data.checkpoint import State, dump_state, parse_state
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig


class Crew:
    """What rank 0 tells the others; nothing where it is alone. Raises :class:`RankLostError` as they do."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self._listening = True

    def begin(self, config: TeachConfig, env_seed: int | Sequence[int], agent: Agent) -> None:
        """Have the others make environments and an agent like rank 0's."""
        word = {"config": dataclasses.asdict(config), "env_seed": env_seed, "agent": agent.state_dict()}
        self._tell(word)

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        """One more round, in which the others take part; they listen again once it has come to its end."""
        self._listening = False
        self._tell({})
        yield
        self._listening = True

    def share(self, predictor: RewardPredictor, critic_epochs: int) -> None:
        """Give the others the predictor for the rollout of this round, and how long its critic is trained."""
        if self.ranks.size > 1:
            self._tell({"predictor": predictor.state_dict(), "critic_epochs": critic_epochs})

    def dismiss(self, status: int) -> None:
        """Have the others end with that exit status; those cut off in a round end by themselves."""
        if self._listening:
            with contextlib.suppress(RankLostError):
                self._tell({"status": status})

    def _tell(self, word: State) -> None:
        if self.ranks.size > 1:
            self.ranks.broadcast(dump_state(word))


def hear(ranks: Ranks) -> State:
    """Wait for rank 0's next word, however long."""
    return parse_state(ranks.broadcast())
