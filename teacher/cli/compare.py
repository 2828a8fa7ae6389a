"""``teach compare POLICY POLICY [POLICY...]``: let people judge which policy is better."""

from collections.abc import Sequence
from pathlib import Path

from agents.errors import AgentError
from teacher.settings.arguments import INTERRUPTED, OneLineParser, add_options, report_errors
from teacher.settings.comparing import CompareOptions

WORSE = 3
"""Exit status if a policy is not shown to be as good as that of ``--against``."""


def main(arguments: Sequence[str]) -> int:
    """Run ``teach compare`` and return the exit status."""
    parser = OneLineParser(
        prog="teach compare",
        description="Film policies from the same start states, ask people which is better, and report "
        "the ranking. The same command continues a study.",
        epilog="example: teach compare old=flip.onnx new=runs/ShortHopper-v1/flip -n week-12 --against old",
    )
    parser.add_argument(
        "policies",
        nargs="+",
        metavar="POLICY",
        help="run, RUN@STEP, exported policy (.npz, .safetensors, .onnx, .zip of Stable-Baselines3, or a "
        "folder of teach export --huggingface), or folder of .mp4 films; NAME=POLICY names it",
    )
    add_options(parser, CompareOptions, leave_out={"lowest_rating", "highest_rating"})
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    if "name" not in given:
        parser.error("missing option -n/--name")

    def work() -> int:
        words = given.pop("policies")
        options = CompareOptions(**given)
        from rich.console import Console  # noqa: PLC0415 - torch and MuJoCo take seconds

        from teacher.runs.compare_report import Report  # noqa: PLC0415
        from teacher.runs.comparing import Asking, held_folder, open_study  # noqa: PLC0415
        from teacher.runs.policies import read_sources  # noqa: PLC0415

        console, folder, status = (
            Console(soft_wrap=True, highlight=False),
            Path("comparisons") / options.name,
            0,
        )
        sources = read_sources(words)
        base = options.index_against([source.name for source in sources])
        with held_folder(folder):
            study = open_study(folder, sources, options, console)
            asking = Asking(study, folder, options, console)
            try:
                asking.run()
            except KeyboardInterrupt:
                asking.over, status = "interrupted; the same command continues", INTERRUPTED
            verdicts = {} if base is None else asking.ranking.verdicts(base, options.margin)
            said = {at: f"{verdict} than {options.against}" for at, verdict in verdicts.items()}
            report = Report.of(study, options.prompt, asking.over, asking.ranking, said)
            console.print(*report.for_terminal(), sep="\n")
            for line in report.write(folder):
                console.print(line)
        is_fine = all(verdict == "not worse" for verdict in verdicts.values())
        return status or (0 if is_fine else WORSE)

    return report_errors(parser, work, (AgentError,))
