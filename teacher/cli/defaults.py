"""``teach defaults ENV``: show the agent's default hyperparameters for an environment."""

import argparse
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console
from rich.table import Table

from teacher.settings.arguments import OneLineParser, report_errors


def main(arguments: Sequence[str]) -> int:
    """Run ``teach defaults`` and return the exit status."""
    parser = OneLineParser(
        prog="teach defaults",
        description="Show the default hyperparameters of PPO, TRPO and SAC for an environment. To change "
        "one, pass --agent.NAME VALUE to teach.",
        epilog="example: teach defaults HalfCheetah-v5",
    )
    parser.add_argument("env_id", metavar="ENV", help="Gymnasium environment ID, or module:Env-v0")
    given = parser.parse_args(arguments)
    return report_errors(parser, lambda: _show(given, Console(soft_wrap=True)))


def _show(given: argparse.Namespace, console: Console) -> None:
    from agents.defaults import defaults_for  # noqa: PLC0415 - torch takes a second
    from teacher.cli.agent_options import agent_fields  # noqa: PLC0415
    from teacher.envs.families import base_env_id  # noqa: PLC0415
    from teacher.envs.tasks import examine  # noqa: PLC0415

    task = examine(given.env_id, {}).task
    row = defaults_for(base_env_id(task.env_id), task.observation_space)
    configs = (
        row.ppo_for(1, normalize_rewards=False),
        row.trpo_for(task.action_space, normalize_rewards=False),
        row.sac,
    )
    table = Table(title=f"{task.env_id}  (from {row.source})", title_justify="left")
    for title in ("--agent.", "ppo", "trpo", "sac"):
        table.add_column(title)
    having = [{field.name for field in fields(config)} for config in configs]
    for name in agent_fields():
        values = [
            _shown(getattr(config, name)) if name in names else "-"
            for config, names in zip(configs, having, strict=True)
        ]
        table.add_row(name, *values)
    console.print(table)
    falling = "; PPO's learning rate decreases linearly to 0" if row.anneal else ""
    console.print(f"--num_envs {row.num_envs} (sac: {row.sac_num_envs}){falling}", highlight=False)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
