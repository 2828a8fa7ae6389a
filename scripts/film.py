"""Film what a run learned as an animated GIF, and say how much of a behavior its episodes show.

    python scripts/film.py RUN_DIR flip.gif teacher.behaviors:backflip --first 60 --steps 200

Plays episodes with the run's policy, its actions sampled, or with random actions (``--before``), and films
the one in the middle. Of a hopper it also counts the flips backward, and those of them in which nothing
touches the ground while it is upside down.
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
from teacher.training.saved_run import SavedRun

SIZE = 240  # pixels
COLOURS = 64
HUNDREDTHS = 4  # of a second for each frame; players do not go much below


def count_flips(episode: Trajectory) -> tuple[int, int]:
    """How often a hopper turns over backward, and how often of these it is in the air when upside down."""
    flips = in_air = 0
    for step in replay(episode.recipe()):
        data = step.env.unwrapped.data  # type: ignore[attr-defined]
        # The first time that half a turn more than whole ones is behind it.
        if -data.qpos[2] > (2 * flips + 1) * np.pi:
            flips += 1
            in_air += data.ncon == 0
    return flips, in_air


def film(episode: Trajectory, first: int, steps: int, every: int, path: Path) -> None:
    """Write every so many-th of an episode's steps as a GIF that begins again at its end."""
    recipe = episode.recipe(min(first + steps, len(episode)))
    frames = [Image.fromarray(frame) for frame in frames_of(ClipSpec(recipe, first), 2 * SIZE)][::every]
    shape = (SIZE, SIZE * frames[0].height // frames[0].width)
    small = [frame.resize(shape, Image.Resampling.LANCZOS) for frame in frames]
    palette = small[len(small) // 2].quantize(
        COLOURS
    )  # one for all, so that what stands still is stored once
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in small]
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=10 * HUNDREDTHS, loop=0, optimize=True)


def main() -> None:
    """Play, count and film."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("gif", type=Path)
    parser.add_argument("behavior", help="module:function")
    parser.add_argument("--before", action="store_true", help="random actions instead of what was learned")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="step to begin the film with")
    parser.add_argument("--steps", type=int, default=10_000, help="of the episode to film")
    parser.add_argument("--every", type=int, default=2, help="film one step of so many")
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
    print(f"{given.behavior} {np.mean(values):.2f} an episode ({values[0]:.2f} to {values[-1]:.2f})")
    if "Hopper" in run.task.env_id:
        flips, in_air = np.mean([count_flips(episode) for episode in episodes], axis=0)
        print(f"{flips:.1f} flips backward an episode, {in_air:.1f} of them in the air")
    film(episodes[len(episodes) // 2], given.first, given.steps, given.every, given.gif)
    print(f"{given.gif}: {given.gif.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
