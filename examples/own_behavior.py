"""Teach a pendulum to turn like a windmill, with labels from a function of your own.

The function scores the behavior in a clip, and of two clips the one with the higher score is preferred.
"""

import sys

from teacher import Steps, TeachConfig, open_run, train

SHORT = "--short" in sys.argv
SPIN, SECONDS_A_STEP = 2, 0.05  # index of the angular velocity in observations; step length


def windmill(steps: Steps) -> float:
    """Return the number of counterclockwise turns; clockwise ones count as negative."""
    return float(steps.next_observations[:, SPIN].sum() * SECONDS_A_STEP / 6.283)


def main() -> None:
    """Train, and print the number of turns in the last episodes."""
    config = TeachConfig(
        env_id="Pendulum-v1",
        predictor="synth",
        name="windmill",
        teacher="own_behavior:windmill",
        n_labels=20 if SHORT else 100,
        num_timesteps=2_048 if SHORT else 100_000,
        pretrain_iters=100 if SHORT else 10_000,
        no_videos=True,
    )
    with open_run(config) as run:
        train(run)
        last = [windmill(episode) for episode in list(run.episodes)[-5:]]
    print(f"turns in each of the last {len(last)} episodes: {sum(last) / len(last):.1f}")


if __name__ == "__main__":
    main()
