"""Report on a comparison of policies: for the terminal, as JSON, as an image and as a page with the films."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import numpy as np
from rich.table import Column, Table

from teacher.errors import ConfigError, pluralize
from teacher.extras import require_extra
from teacher.files import saved
from teacher.runs.comparing import Study
from teacher.runs.ranking import Answer, Ranking

_INK, _BLUE = "#22303c", "#1f6fb4"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#22303c}"
    "td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}table{margin:1rem 0}"
    "img,video{max-width:100%}video{width:12rem}small{color:#5b6b79}"
)
_NOTES = (
    "Places hold for all policies at once with 95% confidence, however often one looked at the answers. "
    "The interval of a strength holds by itself. A strength higher by 1 means being chosen 73% of the time."
)


@dataclass(frozen=True)
class Ranked:
    """One policy's row; ``place`` has the best and the worst place that the answers leave open."""

    name: str
    source: str
    place: tuple[int, int]
    strength: float
    interval: tuple[float, float]
    chosen: float | None
    against: str | None


@dataclass(frozen=True)
class Reason:
    """Why a labeler gave an answer; ``said`` is the answer with the policies' names ("a ? b": can't tell)."""

    labeler: str
    said: str
    text: str
    films: list[str]


@dataclass(frozen=True)
class Report:
    """Content of ``report.json``.

    Attributes:
        policies: best first.
        wins: how often each policy was chosen over each other one, in the order of ``policies``; a tie is
            half a win.
        claims: pairs of policies, of which the first is better with 95% confidence in all of them together.
        agreement: share of pairs of answers to the same question that agree; None if there are none.
    """

    prompt: str
    over: str
    answers: int
    labelers: list[str]
    policies: list[Ranked]
    wins: list[list[float]]
    claims: list[tuple[str, str]]
    agreement: float | None
    reasons: list[Reason]
    films: dict[str, list[str]]

    @classmethod
    def of(
        cls, study: Study, prompt: str, over: str, ranking: Ranking, against: Mapping[int, str]
    ) -> "Report":
        """Summarize a study; ``against`` has the verdicts on policies that must not be worse than another."""
        order, names = np.argsort(-ranking.strengths, kind="stable").tolist(), study.names
        played, better = ranking.wins + ranking.wins.T, ranking.better
        agreeing, asked_twice = ranking.agreement
        rows = []
        for at in order:
            middle, half = float(ranking.strengths[at]), float(ranking.half_widths[at])
            games = played[at].sum()
            rows.append(
                Ranked(
                    name=names[at],
                    source=study.sources[at],
                    place=ranking.ranks[at],
                    strength=middle,
                    interval=(middle - half, middle + half),
                    chosen=float(ranking.wins[at].sum() / games) if games else None,
                    against=against.get(at),
                )
            )
        return cls(
            prompt=prompt,
            over=over,
            answers=len(ranking.answers),
            labelers=sorted({answer.labeler for answer in ranking.answers}),
            policies=rows,
            wins=ranking.wins[np.ix_(order, order)].tolist(),
            claims=[(names[one], names[other]) for one in order for other in order if better[one, other]],
            agreement=agreeing / asked_twice if asked_twice else None,
            reasons=[_reason(each, study) for each in ranking.answers if each.reason],
            films={
                name: [clip.file for clip in clips] for name, clips in zip(names, study.clips, strict=True)
            },
        )

    @property
    def sentences(self) -> Sequence[str]:
        """Sentences that say what the answers show, and what they don't."""
        names = [each.name for each in self.policies]
        open_pairs = [
            f"{one} and {other}" for one, other in pairwise(names)
            if (one, other) not in self.claims
        ]  # fmt: skip
        agreed = "not measured, because no question has two answers" if self.agreement is None else (
            f"{self.agreement:.0%} of answers to the same question"
        )  # fmt: skip
        machines = sum(name.endswith((" (model)", " (bot)")) for name in self.labelers)
        labelers = pluralize(len(self.labelers), "labeler") + (
            f" ({machines} of them machines)" if machines else ""
        )
        return [
            f"{pluralize(self.answers, 'answer')} by {labelers}; {self.over}.",
            f"The order is not known of: {'; '.join(open_pairs)}." if open_pairs else "The order is known.",
            f"Agreement between labelers: {agreed}.",
            *(f"{each.name} is {each.against}." for each in self.policies if each.against),
            _NOTES,
        ]

    def tables(self) -> tuple[list[list[str]], list[list[str]]]:
        """Return the rows of the table of policies and of that of wins, each with its head."""
        ranked = [
            [
                "–".join(map(str, sorted({*each.place}))),
                each.name,
                f"{each.strength:+.2f}",
                f"{each.interval[0]:+.2f} to {each.interval[1]:+.2f}",
                "" if each.chosen is None else f"{each.chosen:.0%}",
            ]
            for each in self.policies
        ]
        names = [each.name for each in self.policies]
        wins = [
            [name, *("" if own == at else f"{won:g}" for own, won in enumerate(self.wins[at]))]
            for at, name in enumerate(names)
        ]
        return [["place", "policy", "strength", "95% interval", "chosen"], *ranked], [["over", *names], *wins]

    def for_terminal(self) -> Iterator[Table | str]:
        """Yield the tables and sentences to print."""
        for head, *body in self.tables():
            table = Table(*(Column(word, no_wrap=True) for word in head), box=None, pad_edge=False)
            for row in body:
                table.add_row(*row)
            yield table
            yield ""
        yield from self.sentences

    def write(self, folder: Path) -> Iterator[str]:
        """Write ``report.json``, ``report.png`` and ``report.html``; yield lines that say so."""
        with saved(folder / "report.json", "report.json") as file:
            file.write(json.dumps(asdict(self), indent=1).encode())
        try:
            draw(self, folder / "report.png")
        except ConfigError as error:  # without matplotlib
            yield str(error)
        with saved(folder / "report.html", "report.html") as file:
            file.write(self._page().encode())
        yield f"Report with all films: {folder / 'report.html'} (also report.json, report.png)"

    def _page(self) -> str:
        tables = [_table(head, body) for head, *body in self.tables()]
        told = [[each.labeler, each.said, each.text] for each in self.reasons]
        reasons = f"<h2>Reasons</h2>{_table(['labeler', 'answer', 'reason'], told)}" if told else ""
        films = [
            f"<h3>{escape(each.name)}</h3><p><small>{escape(each.source)}</small></p>"
            + "".join(
                f'<video src="{quote(file)}" controls loop muted></video> ' for file in self.films[each.name]
            )
            for each in self.policies
        ]
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(self.prompt)}</title>'
            f"<style>{_STYLE}</style><h1>{escape(self.prompt)}</h1>{tables[0]}"
            + "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
            + '<img src="report.png" alt="Strengths, and how often each policy was chosen">'
            + f"<h2>How often each policy was chosen over the others</h2>{tables[1]}{reasons}"
            + f"<h2>Films</h2>{''.join(films)}</html>\n"
        )


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [("th", head), *(("td", row) for row in body)]
    lines = ("".join(f"<{cell}>{escape(word)}</{cell}>" for word in row) for cell, row in rows)
    return f"<table><tr>{'<tr>'.join(lines)}</table>"


def _reason(answer: Answer, study: Study) -> Reason:
    """Name the policies that an answer calls the best and the worst."""
    scores = np.zeros(len(answer.policies))
    for (first, second), probability in answer.implied.items():
        scores[[first, second]] += probability - 0.5, 0.5 - probability
    best, worst = (study.names[answer.policies[at]] for at in (int(scores.argmax()), int(scores.argmin())))
    names = [study.names[policy] for policy in answer.policies]
    said = f"{best} > {worst}" if scores.any() else (" = " if answer.implied else " ? ").join(names)
    films = [study.clips[policy][answer.start].file for policy in answer.policies]
    return Reason(answer.labeler, said, answer.reason, films)


def draw(report: Report, path: Path) -> None:
    """Draw the strengths with their intervals, and the share of wins over each other policy."""
    figures = require_extra("matplotlib.figure", f"the image {path}", "plots")
    names, count = [each.name for each in report.policies], len(report.policies)
    figure = figures.Figure(figsize=(10.0, 1.6 + 0.45 * count), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    middles = np.array([each.strength for each in report.policies])
    halves = [each.interval[1] - each.strength for each in report.policies]
    left.errorbar(middles, range(count), xerr=halves, fmt="o", color=_BLUE, capsize=3)
    left.set(
        yticks=range(count), yticklabels=names, ylim=(count - 0.5, -0.5), xlabel="strength, 95% interval"
    )
    left.spines[["top", "right"]].set_visible(False)
    wins = np.array(report.wins)
    with np.errstate(invalid="ignore"):
        shares = wins / (wins + wins.T)
    right.imshow(shares, cmap="RdBu", vmin=0, vmax=1)
    for one, other in zip(*np.nonzero(~np.isnan(shares)), strict=True):
        far = abs(shares[one, other] - 0.5) > 0.3
        right.text(other, one, f"{shares[one, other]:.0%}", ha="center", va="center", fontsize=9,
                   color="white" if far else _INK)  # fmt: skip
    right.set(xticks=range(count), yticks=range(count), yticklabels=names, title="row chosen over column")
    right.set_xticklabels(names, rotation=30, ha="right")
    with saved(path, f"the image {path}") as file:
        figure.savefig(file, format="png")
