"""Teach two players of one game, led by one policy, by questions about single steps of it, and film them.

Its action is a list with a choice for each player. There are 40 labels before training, 50 steps of the
predictor, and 40 labels more while the policy is trained. Whether a ball was taken shows in a cell before and
after the step, so the predictor is a network of our own that looks at each cell for itself.
"""

import sys
from functools import partial
from itertools import islice

import torch
from PIL import Image
from torch import nn

from teacher import (
    ClipSpec,
    ReplayRenderer,
    RewardConfig,
    TeachConfig,
    open_run,
    policy_trajectories,
    random_trajectories,
    train,
)

SHORT = "--short" in sys.argv
EPISODES, MILLISECONDS_A_FRAME = (2, 200) if SHORT else (20, 200)


class CellByCell(nn.Module):
    """The reward of a step: what all cells of the field are worth, each by the same small network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cell = nn.Sequential(
            *(nn.Conv2d(channels, 16, 1), nn.ReLU()), *(nn.Conv2d(16, 16, 1), nn.ReLU()), nn.Conv2d(16, 1, 1)
        )

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """``(n, channels, size, size)`` to ``(n,)``."""
        worth: torch.Tensor = self.cell(steps)
        return worth.sum(dim=(1, 2, 3))


def cell_by_cell(shape: tuple[int, ...]) -> nn.Module:
    """For ``network=``: places of players and balls before the step, and the same after it."""
    return CellByCell(shape[0])


def main() -> None:
    """Teach, say what came of it, and film the best episode."""
    config = TeachConfig(
        env_id="teacher/Collect-v1",
        obs_transform="teacher.envs.collect:everyone",
        predictor="synth",
        name="collect",
        segment_steps=1,
        pretrain_labels=40,
        n_labels=44 if SHORT else 80,
        pretrain_iters=50,
        reward=RewardConfig(inputs="state,next_state"),
        network="collect_game:cell_by_cell",
        num_timesteps=500 if SHORT else 100_000,
        no_videos=True,
    )
    with open_run(config) as run:
        train(run)
        act = partial(run.agent.act, deterministic=False)
        taught = list(islice(policy_trajectories(run.task, seed=1, act=act), EPISODES))
    by_chance = list(islice(random_trajectories(run.task, seed=1), EPISODES))
    for who, episodes in (("by chance", by_chance), ("taught", taught)):
        balls = sum(episode.true_return for episode in episodes) / EPISODES
        print(f"balls in an episode, {who}: {balls:.1f}")

    best = max(taught, key=lambda episode: episode.true_return)
    stage = ReplayRenderer(run.task.env_id, run.task.kwargs)
    frames = [Image.fromarray(frame) for frame in stage.frames(ClipSpec(best.recipe()))]
    stage.close()
    first, *rest = frames
    first.save("collect.gif", save_all=True, append_images=rest, duration=MILLISECONDS_A_FRAME, loop=0)
    print(f"collect.gif: {len(frames)} steps, {best.true_return:.0f} balls")


if __name__ == "__main__":
    main()
