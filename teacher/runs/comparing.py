"""Studies in which people compare policies: films, questions, answers, and when there are enough of them."""

import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import numpy as np
from rich.console import Console

from teacher.clips.backoff import Backoff, call_with_retries
from teacher.data.decisions import SiteState
from teacher.errors import ConfigError, DataError, SiteUnreachableError, pluralize
from teacher.files import locked_folder, saved
from teacher.labeling.client import (
    MAX_COMPARISONS_PER_REQUEST,
    ClipReference,
    ExperimentSettings,
    FeedbackClient,
    Registration,
)
from teacher.labeling.human import require_kinds
from teacher.labeling.people import Site, open_site
from teacher.queries.kinds import KINDS
from teacher.reporting.console import progress
from teacher.runs.policies import FPS, Source, config_for, count_starts, film
from teacher.runs.ranking import Answer, Ranking
from teacher.settings.comparing import CompareOptions
from teacher.storage import open_storage, put_verified
from teacher.training.parts import task_of

STUDY_NAME, FILMS = "study.json", "films"
POLL_SECONDS = 2.0
_LEAST_OPEN = 4  # questions that wait for an answer; more if more people answer
_DELAYS = (0.5, 1.0, 2.0, 4.0)  # seconds between tries to open the experiment
_ESCAPED = re.compile(r"'(?='*[=+\-@\t\r])")  # by which the table marks text that looks like a formula
_VALID = frozenset({"counted", "surplus"})


@dataclass(frozen=True)
class Clip:
    """A film of a policy in the clip store, under a key that doesn't tell the policy."""

    file: str
    key: str
    true_return: float | None


@dataclass(frozen=True)
class Asked:
    """A question: the policies that its items show, and the start state."""

    policies: tuple[int, ...]
    start: int


@dataclass
class Study:
    """Content of a study's folder, with which the same command continues it.

    Attributes:
        fixed: settings that films and answers depend on, which can't change.
        clips: films by policy and start state.
    """

    run_id: UUID
    names: list[str]
    sources: list[str]
    fixed: dict[str, str | int | float | None]
    env_id: str
    fps: int
    clips: list[list[Clip]]
    questions: dict[UUID, Asked] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the study to its folder atomically."""
        with saved(folder / STUDY_NAME, "the study") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)))


def open_study(folder: Path, sources: Sequence[Source], options: CompareOptions, console: Console) -> Study:
    """Read a study from its folder, or film its policies.

    Raises:
        ConfigError: the folder has a study of other policies or settings, or the sources don't fit.
        DataError, RenderError: a policy or film is damaged.
    """
    names, places = [each.name for each in sources], [str(each.path.resolve()) for each in sources]
    fixed = {name: getattr(options, name) for name in ("feedback", "env_id", "starts", "seconds", "seed")}
    if (folder / STUDY_NAME).exists():
        try:
            study = msgspec.json.decode((folder / STUDY_NAME).read_bytes(), type=Study)
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{folder / STUDY_NAME} is damaged ({error}); choose another name with -n"
            ) from error
        if (study.names, study.sources, study.fixed) != (names, places, fixed):
            raise ConfigError(
                f"{folder} has a study of {', '.join(study.names)} with other settings; continue it with the "
                "command that started it, or choose another name with -n"
            )
        return study
    kind, given = KINDS[options.feedback], f"--feedback {options.feedback}"
    if not kind.compares_own_items:
        raise ConfigError(f"{given}: its answers don't say which of two films is better; choose another kind")
    if kind.size > 2 and len(sources) <= kind.size:
        raise ConfigError(
            f"{given}: expected {kind.size + 1} or more policies, got {len(sources)}; an answer about "
            f"{kind.size} says nothing about those in the middle"
        )
    config, starts = config_for(sources, options.env_id), count_starts(sources, options.starts)
    clips = []
    with progress(console, "policies filmed", len(sources)) as show:
        for number, source in enumerate(sources):
            paths = [folder / FILMS / f"{source.name}-{start + 1}.mp4" for start in range(starts)]
            show(number)
            returns = film(source, config, paths, options.seconds, options.seed)
            clips.append([_clip(options.name, *each) for each in zip(paths, returns, strict=True)])
    env_id, fps = ("films", FPS) if config is None else (config.env_id, task_of(config).fps)
    study = Study(uuid4(), names, places, fixed, env_id, fps, clips)
    study.save(folder)
    return study


def _clip(name: str, path: Path, true_return: float | None) -> Clip:
    return Clip(f"{FILMS}/{path.name}", f"{name}/{secrets.token_hex(8)}.mp4", true_return)


@contextlib.contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Lock a study's folder for the ``with`` block."""
    try:
        with locked_folder(folder):
            yield
    except BlockingIOError as error:
        raise ConfigError(f"{folder} is in use by another teach compare; stop that one first") from error


class Asking:
    """Asks people on the site which policy is better, until their answers suffice.

    Attributes:
        answers: answers received so far, oldest first.
        over: why the study is over; empty while it isn't.
    """

    def __init__(self, study: Study, folder: Path, options: CompareOptions, console: Console) -> None:
        self.answers: list[Answer] = []
        self.over = ""
        self._study, self._folder, self._options, self._console = study, folder, options, console
        self._kind = KINDS[options.feedback]
        self._base = options.index_against(study.names)
        self._random = np.random.default_rng((options.seed, len(study.questions)))
        self._seen = -1

    @property
    def ranking(self) -> Ranking:
        """Ranking of the policies by the answers so far."""
        return Ranking.of(self.answers, len(self._study.names))

    def run(self) -> None:
        """Ask until there are enough answers, or the experiment is finished on the site."""
        with contextlib.ExitStack() as parts:
            site = open_site(self._options, None, parts)
            client = parts.enter_context(contextlib.closing(FeedbackClient(site.url, site.token)))
            call_with_retries(lambda: self._open(client, site), _DELAYS, site.revive)
            show = parts.enter_context(progress(self._console, "answers", self._options.n_labels))
            retry = Backoff()
            while not self.over:
                try:
                    self._round(client)
                    show(len(self.answers))
                    retry.succeeded()
                except SiteUnreachableError as error:
                    if retry.away is None:
                        self._console.print(f"{error}; trying again", style="yellow", highlight=False)
                    retry.failed(error)
                    if site.revive is not None:
                        site.revive()
                if not self.over:
                    time.sleep(max(POLL_SECONDS, retry.seconds_left()))

    def _settings(self) -> ExperimentSettings:
        options, study = self._options, self._study
        return ExperimentSettings(
            name=options.name,
            run_id=study.run_id,
            env_id=study.env_id,
            prompt=options.prompt,
            n_labels=options.n_labels,
            fps=study.fps,
            has_true_reward=any(clip.true_return is not None for clips in study.clips for clip in clips),
            feedback=options.feedback,
            asks_reasons=options.reasons,
        )

    def _open(self, client: FeedbackClient, site: Site) -> None:
        """Store the films, and create the experiment or continue it, with the questions asked so far."""
        require_kinds(client, {self._kind.name})
        experiment = client.put_experiment(self._settings())
        if experiment.state == "finished":
            client.put_experiment(self._settings(), state="running")
        storage = open_storage(site.storage)
        for clip in (clip for clips in self._study.clips for clip in clips):
            path = self._folder / clip.file
            if storage.size(clip.key) != path.stat().st_size:
                put_verified(storage, clip.key, path)
        self._register(client, list(self._study.questions))
        self._console.print(f"Judge and watch here: {experiment.url}", highlight=False)

    def _round(self, client: FeedbackClient) -> None:
        """Read new answers, and ask more if few questions are open, or finish the experiment."""
        feed = client.decisions(self._options.name, max(0, self._seen), 1)
        if feed.last_seq != self._seen or feed.state == "finished":
            self._read(client)
            self._seen = feed.last_seq
        self.over = self._why_over(feed.state)
        if self.over:
            client.put_experiment(self._settings(), state="finished")
            self._read(client)  # answers that came meanwhile
            return
        missing = max(_LEAST_OPEN, 2 * feed.active_labelers) - feed.open
        if missing > 0:
            self._ask(client, missing)

    def _why_over(self, state: SiteState) -> str:
        ranking, options = self.ranking, self._options
        if self._base is not None:
            verdicts = ranking.verdicts(self._base, options.margin)
            if "undecided" not in verdicts.values():
                return f"all others are compared with {options.against}"
        elif ranking.width <= options.width:
            return "the order is known" if options.width == 0 else f"places are known up to {options.width}"
        if len(self.answers) >= options.n_labels:
            return f"there are {pluralize(len(self.answers), 'answer')}"
        return "the experiment was finished on the site" if state == "finished" else ""

    def _ask(self, client: FeedbackClient, count: int) -> None:
        ranking, study = self.ranking, self._study
        answered = {answer.question for answer in self.answers}
        waiting = [asked.policies for uuid, asked in study.questions.items() if str(uuid) not in answered]
        new = []
        for _ in range(count):
            items = ranking.next_question(self._kind.size, waiting, self._random, self._base)
            waiting.append(items)
            before = [asked.start for asked in study.questions.values() if {*asked.policies} >= {*items[:2]}]
            times = np.bincount(before, minlength=len(study.clips[0])) + self._random.random(
                len(study.clips[0])
            )
            new.append(uuid4())
            shuffled = tuple(self._random.permutation(items).tolist())
            study.questions[new[-1]] = Asked(shuffled, int(times.argmin()))
        study.save(self._folder)
        self._register(client, new)

    def _register(self, client: FeedbackClient, questions: Sequence[UUID]) -> None:
        numbers = {uuid: number for number, uuid in enumerate(self._study.questions)}
        items = [Registration(
            uuid=uuid,
            phase="training",
            step=numbers[uuid],
            priority=0,
            items=self._items(self._study.questions[uuid]),
            kind=self._kind.name,
        ) for uuid in questions]  # fmt: skip
        for start in range(0, len(items), MAX_COMPARISONS_PER_REQUEST):
            client.register(self._options.name, items[start : start + MAX_COMPARISONS_PER_REQUEST])

    def _items(self, asked: Asked) -> tuple[ClipReference, ...]:
        clips = [self._study.clips[policy][asked.start] for policy in asked.policies]
        return tuple(ClipReference(clip.key, clip.true_return) for clip in clips)

    def _read(self, client: FeedbackClient) -> None:
        """Read all standing answers, one for each labeler and question."""
        found = []
        for row in client.labels(self._options.name):
            asked = self._study.questions.get(UUID(row["comparison"]))
            if asked and row["status"] in _VALID and row["purpose"] == "judge" and not row["undo"]:
                kind = row.get("labeler_kind", "human")  # earlier sites don't tell
                found.append(
                    Answer(
                        labeler=row["labeler"] if kind == "human" else f"{row['labeler']} ({kind})",
                        policies=asked.policies,
                        implied=self._kind.implied(row["meaning"]),
                        start=asked.start,
                        question=row["comparison"],
                        reason=_ESCAPED.sub("", row.get("reason", ""), count=1),
                    )
                )
        self.answers = found
