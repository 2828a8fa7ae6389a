"""Report on a model that labels: how often it agrees with people, and how many labels it saved them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from teacher.data.decisions import CANT_TELL

Rows = Iterable[Mapping[str, str]]


def report(comparisons: Rows, labels: Rows, model: str) -> Iterator[str]:
    """Yield the lines of a report, from exported tables.

    Args:
        model: name of the model as a labeler.
    """
    kinds = {row["comparison"]: row["kind"] for row in comparisons}
    own: dict[str, str] = {}
    people: dict[str, list[str]] = defaultdict(list)
    counted: dict[str, set[str]] = defaultdict(set)
    for row in labels:
        if row["undo"] or row["status"] in {"void", "repeat"}:
            continue
        if row["labeler"] == model:
            own[row["comparison"]] = row["meaning"]
        elif row["labeler_kind"] != "model":
            people[row["comparison"]].append(row["meaning"])
        if row["status"] == "counted":
            counted[row["comparison"]].add(row["labeler_kind"])
    agreed, total, unsure = Counter[str](), Counter[str](), Counter[str]()
    for question, answer in own.items():
        for other in people[question]:
            kind = kinds[question]
            unsure[kind] += CANT_TELL in (answer, other)
            total[kind] += CANT_TELL not in (answer, other)
            agreed[kind] += answer == other != CANT_TELL
    for kind in dict.fromkeys([*total, *unsure]):
        share = f" ({agreed[kind] / total[kind]:.0%})" if total[kind] else ""
        yield (
            f"{kind}: the same answer as people in {agreed[kind]} of {total[kind]}{share}; the model or the "
            f"person couldn't tell in {unsure[kind]} more"
        )
    alone = sum(kind == {"model"} for kind in counted.values())
    yield f"labels saved: {alone} of {len(counted)} answered questions had no person's answer"
