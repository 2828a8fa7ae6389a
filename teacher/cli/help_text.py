"""Text of ``teach --help``, and sections of ``teach --help-all``."""

HELP = """\
usage: teach -p {human,synth,rl} -e ENV -n NAME [options]    train an agent
       teach --resume RUN                                    resume a run
       teach COMMAND ...                                     see below

Teach a reinforcement-learning agent a behavior by choosing the better of two
clips in a browser, without writing a reward function.

getting started:
  teach -p human -e ShortHopper-v1 -n flip -l 300 --prompt "Nearer to a flip?"
        learn from people's labels: open the URL it prints and label clips
  teach -p synth -e ShortHopper-v1 -n try -l 300 -t 3e5
        learn from synthetic labels made with the environment's own reward
  teach -p rl -e ShortHopper-v1 -n sanity -t 3e5
        train on that reward directly, to see if the agent can learn the task

most used options:
  -p human|synth|rl     source of rewards: people's labels, synthetic labels,
                        or the environment
  -e ENV                environment: a Gymnasium ID such as Pendulum-v1,
                        rl-teacher's ShortHopper-v1, or module:Env-v0
  -n NAME               name of the run; its directory is runs/ENV/NAME
  -l N                  labels in total (-L N of them before training starts)
  -t N                  environment steps to train for, such as 3e5
  --help-all            show all options, by section
  --version             show the version

commands (run one with --help for its options):
  teach doctor          check that everything works on this machine
  teach ls              list runs and their progress
  teach site [RUN]      open the labeling site of runs that have ended;
                        invite, create tokens, back up (see --help)
  teach label RUN       let a vision-language model label beside people
  teach play RUN        make a video of a run's policy, optionally with
                        predicted rewards
  teach compare POLICY POLICY ...            let people judge which is better
  teach export RUN FILE                      write labels, predictor to files
  teach fit DATASET PREDICTOR                fit a predictor to exported labels
  teach evaluate PREDICTOR DATASET           evaluate a predictor on labels
  teach relabel PREDICTOR TRAJECTORIES COPY  replace rewards with predictions
  teach import SOURCE FILE                   read imitation, Minari, Uni-RLHF
  teach record RUN FILE                      record demonstrations of a policy
  teach defaults ENV                         show default hyperparameters
"""

ENVIRONMENTS = """\
The original rl-teacher's tasks are registered as teacher/<Name>-v1 and
teacher/Short<Name>-v1. Names, with aliases in parentheses: Reacher Hopper
Walker (Walker2d) Cheetah (HalfCheetah) Swimmer Ant Humanoid Pendulum
(InvertedPendulum) DoublePendulum (InvertedDoublePendulum). The prefix
teacher/ can be left out unless Gymnasium has an environment with that ID:
Pendulum-v1 is Gymnasium's classic pendulum. For rl-teacher's, use
InvertedPendulum-v1 or teacher/Pendulum-v1.
"""

SECTIONS = {
    "the run": ("env_id", "predictor", "name", "seed", "num_timesteps", "runs_dir", "no_videos", "track"),
    "labels": (
        "n_labels", "pretrain_labels", "schedule", "prompt", "feedback", "lowest_rating", "highest_rating",
        "teacher", "segment_seconds", "segment_steps", "gold", "pace", "hard_labels", "pretrain_iters",
        "pretrain_steps",
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
"""Sections of ``teach --help-all``, and the settings in each."""
