"""Teach one policy to control two players of a game with labels about single steps; save an animated GIF.

An action is a list with one choice per player. The run asks for 40 labels before training, trains the
predictor for 50 updates, and asks for 40 more labels during training. A collected ball changes one cell of
the field, so the predictor uses a custom network that scores each cell separately.
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
    """Reward network that sums a score per cell, computed by the same small network for every cell."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cell = nn.Sequential(
            *(nn.Conv2d(channels, 16, 1), nn.ReLU()), *(nn.Conv2d(16, 16, 1), nn.ReLU()), nn.Conv2d(16, 1, 1)
        )

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return rewards of shape ``(n,)`` for steps of shape ``(n, channels, size, size)``."""
        worth: torch.Tensor = self.cell(steps)
        return worth.sum(dim=(1, 2, 3))


def cell_by_cell(shape: tuple[int, ...]) -> nn.Module:
    """Build the network for ``network=``; channels show players and balls before and after the step."""
    return CellByCell(shape[0])


def main() -> None:
    """Train, compare the policy with random actions, and save its best episode as a GIF."""
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
    for who, episodes in (("random actions", by_chance), ("taught", taught)):
        balls = sum(episode.true_return for episode in episodes) / EPISODES
        print(f"balls per episode, {who}: {balls:.1f}")

    best = max(taught, key=lambda episode: episode.true_return)
    stage = ReplayRenderer(run.task.env_id, run.task.kwargs)
    frames = [Image.fromarray(frame) for frame in stage.frames(ClipSpec(best.recipe()))]
    stage.close()
    first, *rest = frames
    first.save("collect.gif", save_all=True, append_images=rest, duration=MILLISECONDS_A_FRAME, loop=0)
    print(f"collect.gif: {len(frames)} steps, {best.true_return:.0f} balls")


if __name__ == "__main__":
    main()
