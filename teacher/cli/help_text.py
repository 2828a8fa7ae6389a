"""Text of ``teach --help``, and the sections of ``teach --help-all``."""

HELP = """\
usage: teach -p {human,synth,rl} -e ENV -n NAME [options]    train an agent
       teach --resume RUN                                    continue a run
       teach COMMAND ...                                     see below

Teach a reinforcement-learning agent a behavior by choosing the better of two
clips in a browser, without writing a reward function.

getting started:
  teach -p human -e ShortHopper-v1 -n flip -l 300 --prompt "Nearer to a flip?"
        people label: open the address it prints
  teach -p synth -e ShortHopper-v1 -n try -l 300 -t 3e5
        synthetic labels from the environment's own reward
  teach -p rl -e ShortHopper-v1 -n sanity -t 3e5
        RL on that reward: can the agent learn the task at all?

most used options:
  -p human|synth|rl     source of rewards: people's labels, synthetic labels,
                        or the environment
  -e ENV                environment: a Gymnasium id such as Pendulum-v1,
                        rl-teacher's ShortHopper-v1, or module:Env-v0
  -n NAME               name of the run; its directory is runs/ENV/NAME
  -l N                  labels in total (-L N of them before training starts)
  -t N                  environment steps to train for, such as 3e5
  --help-all            all options, by section
  --version             print the version

commands (each says more with --help):
  teach doctor          check what is missing on this machine
  teach ls              list the runs and their progress
  teach play RUN        make a video of a run's policy, with predicted
                        rewards if wanted
  teach export RUN FILE                      labels and predictor as files
  teach fit DATASET PREDICTOR                fit a predictor to exported labels
  teach evaluate PREDICTOR DATASET           evaluate it on other labels
  teach relabel PREDICTOR TRAJECTORIES COPY  relabel trajectories with rewards
  teach import SOURCE FILE                   read imitation, Minari, Uni-RLHF
  teach record RUN FILE                      record a policy's demonstrations
  teach defaults ENV                         show default hyperparameters
"""

ENVIRONMENTS = """\
rl-teacher's tasks are registered as teacher/<Name>-v1 and
teacher/Short<Name>-v1. Their names without teacher/ work if Gymnasium has no
environment of that id: Reacher Hopper Walker (Walker2d) Cheetah (HalfCheetah)
Swimmer Ant Humanoid Pendulum (InvertedPendulum) DoublePendulum
(InvertedDoublePendulum). So Pendulum-v1 is Gymnasium's classic one;
rl-teacher's is InvertedPendulum-v1 or teacher/Pendulum-v1.
"""

SECTIONS = {
    "the run": ("env_id", "predictor", "name", "seed", "num_timesteps", "runs_dir", "no_videos"),
    "labels": (
        "n_labels", "pretrain_labels", "schedule", "prompt", "teacher", "segment_seconds", "segment_steps",
        "gold", "pace", "hard_labels", "pretrain_iters",
    ),
    "the agent": (
        "agent", "num_envs", "workers", "device", "ent_coef", "value_refit", "policy", "demonstrations",
    ),
    "the predictor's networks": ("network",),
    "the environment": (
        "max_episode_steps", "fixed_horizon", "allow_variable_horizon", "env_kwargs", "obs_transform",
        "capture_frames",
    ),
    "the labeling site": ("site_url", "storage", "state_dir", "bind", "public_url"),
}  # fmt: skip
"""Sections of ``teach --help-all`` and the options in each."""
