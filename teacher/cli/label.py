"""``teach label RUN``: have a vision-language model label an experiment's clips, as one more labeler."""

from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path

from teacher.settings.arguments import OneLineParser, add_options, report_errors
from teacher.settings.endpoint import EndpointSettings


def main(arguments: Sequence[str]) -> int:
    """Run ``teach label`` and return the exit status."""
    parser = OneLineParser(
        prog="teach label",
        usage="teach label RUN --url URL --model NAME [options]",
        description="Have a vision-language model label clips until the experiment is finished, a limit is "
        "reached, or Ctrl-C. The same command continues. Without --share, the model only answers questions "
        "that people have answered too.",
        argument_default=SUPPRESS,
        epilog="example: teach label runs/ShortHopper-v1/flip --url http://localhost:8000/v1 --model qwen",
    )
    parser.add_argument("run", metavar="RUN", help="directory of a run with -p human, or an invitation link")
    add_options(parser, EndpointSettings)
    parser.add_argument(
        "--share",
        type=float,
        default=0.0,
        help="share of the questions that the model may decide without people (default: 0)",
    )
    parser.add_argument(
        "--log", type=Path, default=None, help="file for replies (default: EXPERIMENT-MODEL.jsonl, here)"
    )
    parser.add_argument(
        "--dry_run", action="store_true", default=False, help="print a request and its cost; send nothing"
    )
    given = parser.parse_args(arguments)

    def work() -> None:
        from teacher.labeling.model_run import label  # noqa: PLC0415 - its libraries take a second

        label(given)

    return report_errors(parser, work)
