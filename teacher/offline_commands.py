"""``teach fit``, ``evaluate``, ``relabel`` and ``import``: rewards from files, without an agent or a site."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from teacher.arguments import OneLineParser, add_options, as_whole_number, report_errors
from teacher.checks import SEED, whole_number
from teacher.demonstrations import save_demonstrations
from teacher.errors import ConfigError, DataError, counted
from teacher.evaluation import Evaluation, evaluate
from teacher.files import require_folder, require_new
from teacher.metrics import progress
from teacher.offline import MAX_UPDATES, check_single_fit, fit_once, require_updates
from teacher.options import RewardConfig
from teacher.predictor_files import load_predictor, save_predictor
from teacher.preference_files import load_preferences, save_preferences, saved_spaces, space_of
from teacher.reward.idle import refuse_idle_of_network
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import SETTLED, UNDECIDED, FitReport
from teacher.trajectories import as_demonstrations, load_trajectories, relabel
from teacher.unirlhf import crowd_preferences, is_crowd_labels, load_crowd_labels

_DATASET = "preferences, .npz or .parquet, as teach export writes them"
_PREDICTOR = "a predictor, .npz, as teach fit writes it"


def fit(arguments: Sequence[str]) -> int:
    """Run ``teach fit``; returns the exit status."""
    parser = OneLineParser(
        prog="teach fit",
        description="Fit a reward predictor to exported preferences, without an agent or a site.",
        epilog="example: teach fit labels.npz reward.npz --evaluate others.npz",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("dataset", type=Path, help=_DATASET)
    parser.add_argument("predictor", type=Path, help="the .npz file to write")
    parser.add_argument(
        "--evaluate", type=Path, default=None, metavar="DATASET", help="then try it on these preferences"
    )
    parser.add_argument("--seed", type=as_whole_number, default=1, help="of everything random (default: 1)")
    parser.add_argument(
        "--max_updates",
        type=as_whole_number,
        default=MAX_UPDATES,
        help=f"it ends before where nothing is gained any more (default: {MAX_UPDATES})",
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
        raise ConfigError(f"--max_updates: expected 1 or more; got {given.max_updates}")
    if given.predictor.suffix != ".npz":
        raise ConfigError(f"expected a file of a predictor named *.npz, got {given.predictor}")
    require_folder(given.predictor)
    require_new(given.predictor)
    check_single_fit(config, given.max_updates, prefix="--")
    dataset = load_preferences(given.dataset)
    others = None if given.evaluate is None else load_preferences(given.evaluate, env_id=dataset.env_id)
    spaces = saved_spaces(given.dataset)
    refuse_idle_of_network(config, spaces[0], prefix="--reward.")
    predictor = RewardPredictor(*spaces, config, seed)
    with progress(console, "fitting the predictor", given.max_updates) as show:
        report = fit_once(predictor, dataset, given.max_updates, show)
    if report.diverged:
        raise DataError(
            "the fit came to numbers that are none; try a smaller --reward.learning_rate, and look for "
            f"outliers in {given.dataset}"
        )
    require_updates(report, dataset)
    save_predictor(given.predictor, predictor, *spaces)
    console.print(
        f"{given.predictor}: fitted to {counted(len(dataset), 'preference')} about {dataset.env_id} in "
        f"{counted(report.updates, 'update')}; {_losses(report)}",
        highlight=False,
    )
    if report.undecided:
        console.print(UNDECIDED, style="yellow")
    if report.settled:
        console.print(SETTLED, highlight=False)
    if others is not None:
        for line in described(evaluate(predictor, others), given.evaluate):
            console.print(line, highlight=False)


def _losses(report: FitReport) -> str:
    """How a fit came out, in words."""
    if math.isnan(report.accuracy):
        return f"none was held out from any member to try it on (training loss {report.loss:.3f})"
    return (
        f"of those held out from each member {report.accuracy:.1%} right, loss {report.validation_loss:.3f} "
        f"(training {report.loss:.3f})"
    )


def evaluate_(arguments: Sequence[str]) -> int:
    """Run ``teach evaluate``; returns the exit status."""
    parser = OneLineParser(
        prog="teach evaluate",
        description="Say how well a predictor knows the answers of a dataset that it was not fitted to.",
        epilog="example: teach evaluate reward.npz others.npz",
        allow_abbrev=False,
    )
    parser.add_argument("predictor", type=Path, help=_PREDICTOR)
    parser.add_argument("dataset", type=Path, help=_DATASET)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    given = parser.parse_args(arguments)

    def work() -> None:
        found = evaluate(load_predictor(given.predictor), load_preferences(given.dataset))
        print(json.dumps(found.to_dict()) if given.json else "\n".join(described(found, given.dataset)))

    return report_errors(parser, work)


def described(found: Evaluation, dataset: Path) -> Sequence[str]:
    """An evaluation in lines for people."""
    lines = [
        (
            f"{dataset}: {found.accuracy:.1%} of {counted(found.pairs, 'answer')} right (a coin: 50.0%), "
            f"loss {found.loss:.3f} nats (a coin: 0.693)"
        )
    ]
    if found.margins:
        lines += ["", "by the difference of true returns    answers    right"]
        lines += [
            f"  {f'{group.low:.4g} to {group.high:.4g}':<32}{group.pairs:>10,}{group.accuracy:>9.1%}"
            for group in found.margins
        ]
        lines.append(f"  rank correlation of predicted and true differences: {found.rank_correlation:.3f}")
    lines += ["", "by how sure it is                    answers     says    holds"]
    lines += [
        f"  {f'{group.low:.0%} to {group.high:.0%}':<32}{group.pairs:>10,}{group.predicted:>9.1%}"
        f"{group.answered:>9.1%}"
        for group in found.certainties
    ]
    lines.append(f"  calibration error: {found.calibration_error:.3f}")
    return lines


def relabel_(arguments: Sequence[str]) -> int:
    """Run ``teach relabel``; returns the exit status."""
    parser = OneLineParser(
        prog="teach relabel",
        description="Copy trajectories, with the rewards of a predictor in place of those recorded.",
        epilog="example: teach relabel reward.npz ~/.minari/datasets/hopper/medium-v0 hopper-taught-v0",
        allow_abbrev=False,
    )
    parser.add_argument("predictor", type=Path, help=_PREDICTOR)
    parser.add_argument(
        "trajectories", type=Path, help="demonstrations (.npz), or a folder of imitation or Minari"
    )
    parser.add_argument("copy", type=Path, help="the file or folder to write, of the same kind")
    given = parser.parse_args(arguments)

    def work() -> None:
        relabel(load_predictor(given.predictor), given.trajectories, given.copy)
        print(f"{given.copy}: {given.trajectories} with the rewards of {given.predictor}")

    return report_errors(parser, work)


def import_(arguments: Sequence[str]) -> int:
    """Run ``teach import``; returns the exit status."""
    parser = OneLineParser(
        prog="teach import",
        description="Read what other programs recorded: trajectories, which become demonstrations for teach "
        "--demonstrations, or labels of Uni-RLHF, which become preferences for teach fit.",
        epilog="example: teach import ~/.minari/datasets/hopper/expert-v0 expert.npz",
        allow_abbrev=False,
    )
    parser.add_argument("source", type=Path, help="of imitation, Minari or Uni-RLHF: a folder, or an .npz")
    parser.add_argument("file", type=Path, help="the file to write: .npz, for preferences .parquet, too")
    group = parser.add_argument_group("labels of Uni-RLHF")
    group.add_argument(
        "--trajectories", type=Path, metavar="TABLE", help="the D4RL dataset they are about, .hdf5 or .npz"
    )
    group.add_argument("--env_id", help="name the environment so (without it: as the labels do)")
    given = parser.parse_args(arguments)
    return report_errors(parser, lambda: print(f"{given.file}: {_import(given)}"))


def _import(given: argparse.Namespace) -> str:
    """Write what was asked for; how much it is."""
    require_new(given.file)
    if not is_crowd_labels(given.source):
        demonstrations = as_demonstrations(load_trajectories(given.source))
        save_demonstrations(given.file, demonstrations)
        return demonstrations.summary()
    if given.trajectories is None:
        raise ConfigError(f"expected --trajectories, the dataset that the labels in {given.source} are about")
    dataset = crowd_preferences(load_crowd_labels(given.source), given.trajectories, given.env_id)
    columns = dataset.steps()
    spaces = (
        space_of({"kind": "Box", "shape": array.shape[3:], "dtype": str(array.dtype)})
        for array in (columns.states, columns.actions)
    )
    save_preferences(given.file, dataset, *spaces)
    return f"{counted(len(dataset), 'preference')} about {dataset.env_id}"
