"""``teach evaluate PREDICTOR DATASET``: measure a predictor's accuracy on held-out preferences."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from teacher.errors import pluralize
from teacher.settings.arguments import DATASET, PREDICTOR, OneLineParser, report_errors

if TYPE_CHECKING:
    from teacher.reward.evaluation import Evaluation


def main(arguments: Sequence[str]) -> int:
    """Run ``teach evaluate`` and return the exit status."""
    parser = OneLineParser(
        prog="teach evaluate",
        description="Measure a predictor's accuracy and calibration on labels that it was not fitted to.",
        epilog="example: teach evaluate reward.npz others.npz",
    )
    parser.add_argument("predictor", type=Path, help=PREDICTOR)
    parser.add_argument("dataset", type=Path, help=DATASET)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    given = parser.parse_args(arguments)

    def work() -> None:
        from teacher.datasets.predictor_files import load_predictor  # noqa: PLC0415
        from teacher.datasets.preference_files import load_preferences  # noqa: PLC0415
        from teacher.reward.evaluation import evaluate  # noqa: PLC0415 - torch takes a second

        found = evaluate(load_predictor(given.predictor), load_preferences(given.dataset))
        lines = format_evaluation(found, given.dataset)
        print(json.dumps(found.to_dict()) if given.json else "\n".join(lines))

    return report_errors(parser, work)


def format_evaluation(found: "Evaluation", dataset: Path) -> Sequence[str]:
    """Format an evaluation as lines of text for the terminal."""
    lines = [
        (
            f"{dataset}: accuracy {found.accuracy:.1%} on {pluralize(found.pairs, 'label')} (chance: 50.0%), "
            f"loss {found.loss:.3f} nats (chance: 0.693)"
        )
    ]
    if found.margins:
        lines += ["", "by difference in true return          labels accuracy"]
        lines += [
            f"  {f'{group.low:.4g} to {group.high:.4g}':<32}{group.pairs:>10,}{group.accuracy:>9.1%}"
            for group in found.margins
        ]
        lines.append(f"  rank correlation of predicted and true differences: {found.rank_correlation:.3f}")
    lines += ["", "by confidence                         labels expected accuracy"]
    lines += [
        f"  {f'{group.low:.0%} to {group.high:.0%}':<32}{group.pairs:>10,}{group.predicted:>9.1%}"
        f"{group.answered:>9.1%}"
        for group in found.certainties
    ]
    lines.append(f"  calibration error: {found.calibration_error:.3f}")
    return lines
