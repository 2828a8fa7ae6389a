"""Record a run's policy as an animated GIF, and print its episodes' score for a behavior.

    python scripts/film.py RUN_DIR flip.gif teacher.behaviors:backflip --first 60 --steps 200

Plays episodes with the run's policy (with sampled actions), or with random actions (``--before``), and
records the episode with the median score. For a hopper, also counts backflips, and those in which it doesn't
touch the ground while upside down.
"""

import argparse
import itertools
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from teacher.clips.render import ClipSpec, frames_of
from teacher.envs.episodes import replay
from teacher.envs.random_episodes import policy_trajectories, random_trajectories
from teacher.envs.trajectory import Trajectory
from teacher.queries.judges import Behavior
from teacher.runs.saved_run import SavedRun

SIZE = 240  # pixels
COLORS = 64
HUNDREDTHS = 4  # of a second per frame; viewers don't support much less


def count_flips(episode: Trajectory) -> tuple[int, int]:
    """Return the number of a hopper's backflips, and of those in the air while upside down."""
    flips = in_air = 0
    for step in replay(episode.recipe()):
        data = step.env.unwrapped.data  # type: ignore[attr-defined]
        # The first step upside down in the next turn.
        if -data.qpos[2] > (2 * flips + 1) * np.pi:
            flips += 1
            in_air += data.ncon == 0
    return flips, in_air


def write_gif(episode: Trajectory, first: int, steps: int, every: int, path: Path) -> None:
    """Write every ``every``-th of ``steps`` steps of an episode, from ``first``, as a looping GIF."""
    recipe = episode.recipe(min(first + steps, len(episode)))
    frames = [Image.fromarray(frame) for frame in frames_of(ClipSpec(recipe, first), 2 * SIZE)][::every]
    shape = (SIZE, SIZE * frames[0].height // frames[0].width)
    small = [frame.resize(shape, Image.Resampling.LANCZOS) for frame in frames]
    palette = small[len(small) // 2].quantize(COLORS)  # shared, so that static areas compress well
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in small]
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=10 * HUNDREDTHS, loop=0, optimize=True)


def main() -> None:
    """Play episodes, print their scores, and record one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("gif", type=Path)
    parser.add_argument("behavior", help="module:function")
    parser.add_argument("--before", action="store_true", help="use random actions instead of the policy")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="first step to record")
    parser.add_argument("--steps", type=int, default=10_000, help="maximum number of steps to record")
    parser.add_argument("--every", type=int, default=2, help="record one of this many steps")
    given = parser.parse_args()
    run = SavedRun(given.run_dir)
    if given.before:
        played = random_trajectories(run.task, given.seed)
    else:
        act = partial(run.load_agent().act, deterministic=False)
        played = policy_trajectories(run.task, given.seed, act)
    episodes = list(itertools.islice(played, given.episodes))
    behavior = Behavior(given.behavior)
    episodes.sort(key=behavior)
    values = list(map(behavior, episodes))
    print(f"{given.behavior} {np.mean(values):.2f} per episode ({values[0]:.2f} to {values[-1]:.2f})")
    if "Hopper" in run.task.env_id:
        flips, in_air = np.mean([count_flips(episode) for episode in episodes], axis=0)
        print(f"{flips:.1f} backflips per episode, {in_air:.1f} of them in the air")
    write_gif(episodes[len(episodes) // 2], given.first, given.steps, given.every, given.gif)
    print(f"{given.gif}: {given.gif.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
