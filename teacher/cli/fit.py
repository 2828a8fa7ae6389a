"""``teach fit DATASET PREDICTOR``: fit a reward predictor to exported preferences."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from teacher.cli.evaluate import format_evaluation
from teacher.errors import ConfigError, DataError, pluralize
from teacher.files import require_new
from teacher.settings.arguments import DATASET, OneLineParser, add_options, as_whole_number, report_errors
from teacher.settings.checks import SEED, whole_number
from teacher.settings.options import MAX_UPDATES, RewardConfig

if TYPE_CHECKING:
    from teacher.reward.report import FitReport


def main(arguments: Sequence[str]) -> int:
    """Run ``teach fit`` and return the exit status."""
    parser = OneLineParser(
        prog="teach fit",
        description="Fit a reward predictor to exported preferences, without an agent or a labeling site.",
        epilog="example: teach fit labels.npz reward.npz --evaluate others.npz",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("dataset", type=Path, help=DATASET)
    parser.add_argument("predictor", type=Path, help="predictor file to write (.npz)")
    parser.add_argument(
        "--evaluate",
        type=Path,
        default=None,
        metavar="DATASET",
        help="also evaluate the predictor on this preference file",
    )
    parser.add_argument("--seed", type=as_whole_number, default=1, help="random seed (default: 1)")
    parser.add_argument(
        "--max_updates",
        type=as_whole_number,
        default=MAX_UPDATES,
        help=f"maximum number of updates; the fit may stop earlier (default: {MAX_UPDATES})",
    )
    group = parser.add_argument_group("reward", RewardConfig.__doc__)
    add_options(group, RewardConfig, prefix="reward.")
    given = parser.parse_args(arguments)
    return report_errors(parser, lambda: _fit(given, Console(soft_wrap=True)))


def _fit(given: argparse.Namespace, console: Console) -> None:
    prefix = "reward."
    settings = {
        name.removeprefix(prefix): value for name, value in vars(given).items() if name.startswith(prefix)
    }
    config = RewardConfig(**settings)
    seed = whole_number(given.seed, "--seed", SEED)
    if given.max_updates < 1:
        raise ConfigError(f"--max_updates must be at least 1, not {given.max_updates}")
    if given.predictor.suffix != ".npz":
        raise ConfigError(f"the predictor file must be named *.npz, not {given.predictor}")
    require_new(given.predictor)
    from teacher.datasets.predictor_files import save_predictor  # noqa: PLC0415
    from teacher.datasets.preference_files import load_preferences, saved_spaces  # noqa: PLC0415
    from teacher.queries.offline import check_single_fit, fit_once, require_updates  # noqa: PLC0415
    from teacher.reporting.console import once_begun, progress  # noqa: PLC0415 - torch takes a second
    from teacher.reward.building import reject_unused_of_network  # noqa: PLC0415
    from teacher.reward.predictor import RewardPredictor  # noqa: PLC0415
    from teacher.reward.report import UNDECIDED  # noqa: PLC0415

    check_single_fit(config, given.max_updates, prefix="--")
    dataset = load_preferences(given.dataset)
    others = None if given.evaluate is None else load_preferences(given.evaluate, env_id=dataset.env_id)
    spaces = saved_spaces(given.dataset)
    reject_unused_of_network(config, spaces[0], prefix="--reward.")
    predictor = RewardPredictor(*spaces, config, seed)
    with progress(console, "updates of the predictor", given.max_updates) as show:
        report = fit_once(predictor, dataset, given.max_updates, once_begun(show))
    if report.diverged:
        raise DataError(
            f"the fit diverged (NaN or infinite weights); check {given.dataset} for outliers, or try a "
            "smaller --reward.learning_rate if the reward models are networks"
        )
    require_updates(report, dataset)
    save_predictor(given.predictor, predictor, *spaces, new=True)
    console.print(
        f"{given.predictor}: fitted to {pluralize(len(dataset), 'preference')} on {dataset.env_id} in "
        f"{pluralize(report.updates, 'update')}; {_losses(report)}",
        highlight=False,
    )
    if report.undecided:
        console.print(UNDECIDED, style="yellow")
    if report.doubt:
        console.print(report.doubt, style="yellow")
    if report.choice:
        console.print(report.choice, highlight=False)
    if others is not None:
        from teacher.reward.evaluation import evaluate  # noqa: PLC0415

        for line in format_evaluation(evaluate(predictor, others), given.evaluate):
            console.print(line, highlight=False)


def _losses(report: "FitReport") -> str:
    if math.isnan(report.accuracy):
        return f"no held-out labels to evaluate the predictor on (training loss {report.loss:.3f})"
    return (
        f"held-out accuracy {report.accuracy:.1%}, held-out loss {report.validation_loss:.3f} (training loss "
        f"{report.loss:.3f})"
    )
