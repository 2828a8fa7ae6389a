"""The story of an experiment: one sentence about its state, and a chart of its films with their scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.pages.charts import PATH_UNITS, Chart, line_chart, short_number, sparkline
from human_feedback_site.feedback.selectors.experiments import Point
from human_feedback_site.feedback.selectors.labeling import spread
from human_feedback_site.feedback.selectors.monitoring import ExperimentStatus, Film, films_of


@dataclass(frozen=True)
class ShownFilm:
    """A film in the chart or, if it has no score, in a list."""

    step: int
    caption: str
    curve: str  # SVG path of its predicted rewards, on the scale of all films; empty if not known
    at: tuple[float, float] | None  # position in the chart


@dataclass(frozen=True)
class Story:
    """Films of the agent, with a chart of their scores; the chart is None if no film has one."""

    first: ShownFilm | None  # film of the agent before training, which has no score if it is from 0.1.0
    films: Sequence[ShownFilm]
    chart: Chart | None
    marks: str  # SVG path of marks at the steps at which answers came in
    other: str  # name of the other experiment in the chart; empty if there is none
    others: Sequence[str]  # names of the experiments that can be shown too

    @property
    def newest(self) -> ShownFilm | None:
        """Return the film of the agent now."""
        return self.films[-1] if self.films else None


def story_of(status: ExperimentStatus, own: QuerySet[Experiment], other: str) -> Story:
    """Return the story of an experiment.

    Args:
        own: the owner's other experiments.
        other: name of the one whose films to draw, too; ignored if it has no scored films.
    """
    scored, chart, others = _scored(status.films), None, list[str]()
    if scored:
        others = list(own.filter(episodes__rewards__isnull=False).distinct().values_list("name", flat=True))
        behind = _scored(films_of(own.get(name=other))) if other in others else []
        chart = line_chart(*([(film.step, film.score) for film in films] for films in (scored, behind)))
    values = [value for film in scored for value in film.rewards or ()]
    scale = min(values, default=0.0), max(values, default=0.0)
    return Story(
        first=_shown(status.films[0], chart, scale) if status.films else None,
        films=[_shown(film, chart, scale) for film in scored or spread(status.films)],
        chart=chart,
        marks=_marks(chart, status.points.get("labels/answered", ())) if chart else "",
        other=other if other in others else "",
        others=others,
    )


def _scored(films: Sequence[Film]) -> list[Film]:
    return [film for film in films if film.rewards]


def _shown(film: Film, chart: Chart | None, scale: tuple[float, float]) -> ShownFilm:
    caption = _("Step %(step)s") % {"step": f"{film.step:,}"}
    if film.answered is not None:
        answers = ngettext("after %(n)s answer", "after %(n)s answers", film.answered) % {"n": film.answered}
        caption = _(", ").join([caption, answers])
    if not film.rewards:
        return ShownFilm(film.step, caption, "", None)
    at = chart.at(film.step, film.score) if chart else None
    score = _("score %(score)s") % {"score": short_number(film.score)}
    return ShownFilm(film.step, _(", ").join([caption, score]), sparkline(film.rewards, *scale), at)


def _marks(chart: Chart, answered: Sequence[Point]) -> str:
    """Return the path of a short vertical line at each step at which the number of answers had grown."""
    at, before = list[float](), 0.0
    for point in answered:
        if point["value"] > before and point["step"] <= chart.x_high:
            at.append(chart.at(point["step"], 0.0)[0])
        before = point["value"]
    return "".join(f"M{x * PATH_UNITS / 100:.0f} {PATH_UNITS}v-40" for x in sorted(set(at)))


def state_sentence(
    experiment: Experiment, status: ExperimentStatus, away_since: datetime | None, left: str
) -> str:
    """Return one sentence about what an experiment does or waits for.

    Args:
        left: time until the last answer; empty if not known.
    """
    labelers, answered, waiting = len(status.active), status.progress.answered, experiment.waiting_for or 0
    if experiment.state == Experiment.State.FINISHED:
        text = ngettext("Finished after %(n)s answer", "Finished after %(n)s answers", answered)
        return text % {"n": answered}
    if experiment.state == Experiment.State.PAUSED:
        return _("Paused: training and labeling wait until you resume them")
    if away_since is not None:
        return _("The run is stopped; answers are kept until it is resumed")
    if not labelers and not waiting:
        return _("Training goes on; nobody is labeling")
    if not labelers:
        text = ngettext(
            "Training waits for you: %(n)s answer", "Training waits for you: %(n)s answers", waiting
        )
        return text % {"n": waiting}
    hourly = round(60 * status.rate)
    said = [
        ngettext("%(n)s labeler", "%(n)s labelers", labelers) % {"n": labelers},
        ngettext("%(n)s answer an hour", "%(n)s answers an hour", hourly) % {"n": f"{hourly:,}"},
    ]
    if waiting:
        text = ngettext("training waits for %(n)s answer", "training waits for %(n)s answers", waiting)
        said.append(text % {"n": waiting})
    elif left:
        said.append(_("done in about %(time)s") % {"time": left})
    return _(", ").join(said)
