"""Lead two players of one game by one policy, ask about single steps of it, and film them.

Its action is a list with a choice for each player. There are 40 labels before training, 50 steps of the
predictor, and 40 labels more while it is trained: enough to see that it goes, too few to learn the game.
"""

import sys
from functools import partial
from itertools import islice

from PIL import Image

from teacher.assembly import open_run
from teacher.clips.render import Shot, Stage
from teacher.config import TeachConfig
from teacher.envs.random_episodes import policy_trajectories, random_trajectories
from teacher.loop import train

SHORT = "--short" in sys.argv
EPISODES, MILLISECONDS_A_FRAME = (2, 200) if SHORT else (20, 200)
config = TeachConfig(
    env_id="teacher/Collect-v1",
    obs_transform="teacher.envs.collect:everyone",
    predictor="synth",
    name="collect",
    segment_steps=1,
    pretrain_labels=40,
    n_labels=44 if SHORT else 80,
    pretrain_iters=5 if SHORT else 50,
    num_timesteps=500 if SHORT else 20_000,
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
stage = Stage(run.task.env_id, run.task.kwargs)
frames = [Image.fromarray(frame) for frame in stage.frames(Shot(best.recipe()))]
stage.close()
frames[0].save("collect.gif", save_all=True, append_images=frames[1:], duration=MILLISECONDS_A_FRAME, loop=0)
print(f"collect.gif: {len(frames)} steps, {best.true_return:.0f} balls")
