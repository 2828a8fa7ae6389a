"""Run an experiment with the embedded site, labeled over HTTP by scripted labelers instead of people.

They sign in, lease pairs, load clips and answer as browsers do, with a 5 % error rate.
"""

import sys
from pathlib import Path
from urllib.parse import urljoin

from teacher import Bot, ErrorModel, TeachConfig, open_run, train

SHORT = "--short" in sys.argv
config = TeachConfig(
    env_id="CartPole-v1",
    predictor="human",
    name="crowd",
    n_labels=4 if SHORT else 60,
    pretrain_labels=4 if SHORT else 20,
    num_timesteps=2_048 if SHORT else 50_000,
    pretrain_iters=100 if SHORT else 10_000,
    max_episode_steps=60,
    allow_variable_horizon=True,
    segment_seconds=0.5,
    no_videos=True,
)
if __name__ == "__main__":
    with open_run(config) as run:
        assert run.teaching is not None  # noqa: S101 (the run uses labels)
        print(f"people can join at {run.address}")
        site, token = urljoin(run.address, "/"), Path(config.state_dir, "token").read_text().strip()
        error_model = ErrorModel.parse("mistake:0.05")
        bots = [
            Bot(site, config.experiment, token, f"bot-{number}", log=None, error_model=error_model)
            for number in (1, 2)
        ]
        for bot in bots:
            bot.start()
        train(run)
        run.finish()
        for bot in bots:
            bot.join()
            print(f"{bot.name}: {bot.answered} answers")
