"""What ``teach --help`` says: enough to begin, and where the rest is."""

HELP = """\
usage: teach -p {human,synth,rl} -e ENV -n NAME [options]    train an agent
       teach --resume RUN                                    go on with a run
       teach COMMAND ...                                     see below

Teach a reinforcement-learning agent a behavior by choosing the better of two
clips in a browser. No reward has to be written.

to begin:
  teach -p human -e ShortHopper-v1 -n flip -l 300 --prompt "Nearer to a flip?"
        people choose: open the address it prints
  teach -p synth -e ShortHopper-v1 -n try -l 300 -t 3e5
        the same with answers made from the environment's own reward
  teach -p rl -e ShortHopper-v1 -n sanity -t 3e5
        only that reward: can the agent learn this at all?

the options used most:
  -p human|synth|rl     where rewards come from: people, made-up answers, or
                        the environment
  -e ENV                what to train on: a Gymnasium id such as Pendulum-v1,
                        rl-teacher's ShortHopper-v1, or module:Env-v0
  -n NAME               name of the run; it goes to runs/ENV/NAME
  -l N                  labels in all (-L N of them before training starts)
  -t N                  environment steps to train for, such as 3e5
  --help-all            all options, by section
  --version             print the version

commands (each says more with --help):
  teach doctor          say what is missing on this machine, and how to get it
  teach ls              list the runs, and how far each came
  teach play RUN        film what a run's policy does now, and what the
                        predictor thinks of it
  teach export RUN FILE                      labels and predictor as files
  teach fit DATASET PREDICTOR                fit a predictor to such labels
  teach evaluate PREDICTOR DATASET           try it on others
  teach relabel PREDICTOR TRAJECTORIES COPY  give trajectories its rewards
  teach import SOURCE FILE                   read imitation, Minari, Uni-RLHF
  teach record RUN FILE                      demonstrations by a run's policy
  teach defaults ENV                         the agent's hyperparameters there
"""

ENVIRONMENTS = """\
rl-teacher's tasks are registered as teacher/<Name>-v1 and
teacher/Short<Name>-v1. Their bare names work wherever Gymnasium has no
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
"""The sections of ``teach --help-all``, and the options in each."""
