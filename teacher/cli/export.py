"""``teach export RUN``: write a run's labels, reward predictor and policy to files for other programs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agents.errors import AgentError
from teacher.errors import ConfigError, pluralize
from teacher.files import require_new
from teacher.settings.arguments import OneLineParser, report_errors
from teacher.settings.config_files import load_config

# ruff: noqa: PLC0415 (torch takes a second to import)


def main(arguments: Sequence[str]) -> int:
    """Run ``teach export`` and return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)

    def work() -> None:
        _check(given)
        load_config(given.run)
        _export(given)

    return report_errors(parser, work, (AgentError,))


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="teach export",
        description="Write a run's labels, reward predictor and policy to files for other programs.",
        epilog="example: teach export runs/ShortHopper-v1/backflip labels.npz --predictor reward.npz",
    )
    parser.add_argument("run", type=Path, help="run directory, such as runs/ShortHopper-v1/backflip")
    parser.add_argument(
        "labels",
        type=Path,
        nargs="?",
        help="file for the labels (.npz or .parquet), or folder for a Hugging Face dataset",
    )
    parser.add_argument(
        "--clips", action="store_true", help="also render and include the clips of all pairs (not for .npz)"
    )
    parser.add_argument(
        "--predictor", type=Path, metavar="FILE", help="write the predictor to this .npz file"
    )
    parser.add_argument(
        "--onnx",
        type=Path,
        metavar="DIR",
        help="write policy.onnx and predictor.onnx to this folder, after checking them with ONNX Runtime",
    )
    parser.add_argument(
        "--huggingface",
        type=Path,
        metavar="DIR",
        help="write policy and predictor as safetensors to this folder, with a model card for Hugging Face",
    )
    parser.add_argument(
        "--sb3", type=Path, metavar="FILE", help="write the policy to this .zip file for Stable-Baselines3"
    )
    parser.add_argument(
        "--license",
        default="unknown",
        metavar="ID",
        help="license to name in cards for Hugging Face, such as mit or cc-by-4.0 (default: unknown)",
    )
    return parser


def _check(given: argparse.Namespace) -> None:
    """Raise :class:`ConfigError` if a file can't be written, before anything is loaded."""
    files = {"predictor": (given.predictor, ".npz"), "Stable-Baselines3": (given.sb3, ".zip")}
    wanted = (given.labels, given.predictor, given.onnx, given.huggingface, given.sb3)
    if all(path is None for path in wanted):
        raise ConfigError(
            "nothing to export; pass a file for the labels, or --predictor FILE, --onnx DIR, "
            "--huggingface DIR or --sb3 FILE"
        )
    for what, (path, suffix) in files.items():
        if path is not None:
            if path.suffix != suffix:
                raise ConfigError(f"the {what} file must be named *{suffix}, not {path}")
            require_new(path)
    if given.predictor is not None and given.predictor == given.labels:
        raise ConfigError(f"labels and predictor can't both be written to {given.labels}")
    if given.labels is not None and given.labels in (given.onnx, given.huggingface):
        raise ConfigError(
            f"labels and models can't both be written to {given.labels}; Hugging Face keeps datasets and "
            "models in different repositories"
        )


def _export(given: argparse.Namespace) -> None:
    from teacher.datasets.cards import upload_command
    from teacher.datasets.predictor_files import save_predictor
    from teacher.runs.export import export_preferences
    from teacher.runs.model_export import model_writers
    from teacher.runs.saved_run import SavedRun

    run = SavedRun(given.run)
    if given.predictor is not None:
        predictor = run.load_predictor()  # fails before anything is written if there is no predictor
    writers = model_writers(run, given.onnx, given.huggingface, given.sb3, given.license)
    if given.labels is not None:
        console = Console(soft_wrap=True)
        count = export_preferences(
            given.run, given.labels, clips=given.clips, console=console, license_id=given.license
        )
        upload = (
            "" if given.labels.suffix else f"; to upload: {upload_command(given.labels)} --repo-type dataset"
        )
        print(f"{given.labels}: {pluralize(count, 'preference')}{upload}")
    if given.predictor is not None:
        spaces = run.task.observation_space, run.task.action_space
        save_predictor(given.predictor, predictor, *spaces, new=True)
        print(f"{given.predictor}: reward predictor of {given.run}")
    for write in writers:
        for line in write():
            print(line)
