"""People compare policies: what a ranking claims, which questions are asked, what is filmed and reported."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import imageio_ffmpeg
import numpy as np
import pytest
from scipy.optimize import minimize

from teacher.cli import compare
from teacher.clips import CLIP_SIZE
from teacher.clips.encode import encode
from teacher.errors import SiteUnreachableError, TeacherError
from teacher.labeling.client import ExperimentSettings, Registration
from teacher.queries.kinds import KINDS
from teacher.runs import comparing
from teacher.runs.compare_report import Report
from teacher.runs.policies import FPS, config_for, film, play, read_sources
from teacher.runs.ranking import PRIOR_STD, Answer, Ranking, fit_strengths
from teacher.settings.teachers import Answerer, ErrorModel
from teacher.training.parts import task_of

STEP = 1020  # of the checkpoint of the run that is done


def simulated(
    kind: str, returns: Sequence[float], mistake: float, count: int, *, labelers: int = 4
) -> Ranking:
    """Ask scripted labelers what the ranking asks about next, ten questions at a time."""
    random, judge = np.random.default_rng(1), KINDS[kind]
    scripted = [Answerer(ErrorModel(mistake=mistake), seed) for seed in range(labelers)]
    answers: list[Answer] = []
    while len(answers) < count:
        ranking, asked = Ranking.of(answers, len(returns)), list[tuple[int, ...]]()
        for _ in range(10):
            asked.append(ranking.next_question(judge.size, asked, random))
            who, key = len(answers) % labelers, str(len(answers))
            said = judge.scripted(scripted[who], [returns[policy] for policy in asked[-1]], key)[0]
            answers.append(Answer(str(who), asked[-1], judge.implied(said), len(answers) % 5))
    return Ranking.of(answers, len(returns))


def test_strengths_are_those_of_a_logistic_regression() -> None:
    wins = np.array([[0, 7, 9, 2], [3, 0, 5.5, 1], [0, 4.5, 0, 3], [1, 0, 2, 0]])

    def loss(strengths: Any) -> float:
        chance = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
        return float(-(wins * np.log(chance)).sum() + (strengths**2).sum() / 2 / PRIOR_STD**2)

    strengths, information = fit_strengths(wins)
    assert strengths == pytest.approx(minimize(loss, np.zeros(4)).x, abs=1e-4)
    steps = np.eye(4) * 1e-3
    curvature = [
        [
            (loss(strengths + a + b) - loss(strengths + a) - loss(strengths + b) + loss(strengths)) / 1e-6
            for a in steps
        ]
        for b in steps
    ]
    assert information == pytest.approx(np.array(curvature), abs=0.02)


def test_strengths_approach_the_fixed_point_of_zermelo_if_there_are_many_answers() -> None:
    wins = np.array([[0, 7, 9, 2], [3, 0, 5.5, 1], [2, 4.5, 0, 3], [1, 1, 2, 0]])
    worth = np.ones(4)
    for _ in range(2000):
        worth = wins.sum(1) / ((wins + wins.T) / (worth[:, None] + worth)).sum(1)
    strengths, _ = fit_strengths(1e6 * wins)
    assert strengths == pytest.approx(np.log(worth) - np.log(worth).mean(), abs=1e-5)


@pytest.mark.parametrize("kind", ["pair", "graded", "best_worst"])
def test_the_order_becomes_known_and_is_right(kind: str) -> None:
    ranking = simulated(kind, [3.0, 1.0, 4.0, 2.0, 0.0], mistake=0.1, count=400)
    assert ranking.ranks == [(2, 2), (4, 4), (1, 1), (3, 3), (5, 5)]
    assert ranking.width == 0
    few = simulated(kind, [3.0, 1.0, 4.0, 2.0, 0.0], mistake=0.1, count=20)
    assert few.width > 0
    assert all(
        best <= place <= worst for (best, worst), place in zip(few.ranks, (2, 4, 1, 3, 5), strict=True)
    )


def test_no_order_is_claimed_without_answers_or_between_equal_policies() -> None:
    assert Ranking.of([], 3).ranks == [(1, 3)] * 3
    unsure = Ranking.of([Answer("a", (0, 1), KINDS["pair"].implied("cant_tell"), 0, "1", "too dark")], 3)
    assert unsure.ranks == [(1, 3)] * 3
    clips = [[comparing.Clip(f"{name}.mp4", name, None)] for name in "abc"]
    study = comparing.Study(uuid4(), [*"abc"], [*"abc"], {}, "films", FPS, clips)
    report = Report.of(study, "Which?", "over", unsure, {})
    assert (report.answers, report.reasons[0].said) == (1, "a ? b")
    assert not simulated("pair", [1.0, 1.0, 1.0], mistake=0.1, count=200).better.any()  # all are ties
    assert not simulated("pair", [2.0, 1.0], mistake=0.5, count=200).better.any()


def test_slight_preferences_count_less_but_all_in_the_same_direction_show_an_order() -> None:
    def graded(answer: str, count: int) -> Ranking:
        implied = KINDS["graded"].implied(answer)
        return Ranking.of([Answer("a", (0, 1), implied, 0, str(number)) for number in range(count)], 2)

    assert [graded("clearly_first", count).better[0, 1] for count in (12, 40)] == [True, True]
    assert [graded("slightly_first", count).better[0, 1] for count in (12, 40)] == [False, True]
    assert graded("equal", 40).wins.tolist() == [[0, 20], [20, 0]]


def test_labelers_who_disagree_widen_the_intervals() -> None:
    def answers(labelers: Callable[[int], str]) -> Ranking:
        return Ranking.of([Answer(labelers(n), (0, 1), {(0, 1): float(n % 4 > 0)}, n) for n in range(80)], 2)

    alike, differing = answers(lambda n: str(n // 4 % 4)), answers(lambda n: str(n % 4))
    assert alike.better[0, 1]
    assert not differing.better[0, 1]
    assert differing.half_widths[0] > 2 * alike.half_widths[0]


def test_a_policy_is_worse_not_worse_or_undecided_than_another() -> None:
    assert simulated("pair", [1.0, 0.0, 2.0], mistake=0.1, count=300).verdicts(0, 0.1) == {
        1: "worse",
        2: "not worse",
    }
    assert simulated("pair", [1.0, 1.0], mistake=0, count=500).verdicts(0, 0.1) == {1: "not worse"}  # ties
    assert simulated("pair", [1.0, 1.0], mistake=0, count=10).verdicts(0, 0.1) == {1: "undecided"}


def test_agreement_counts_pairs_of_answers_to_the_same_question() -> None:
    first, second, tie = {(0, 1): 1.0}, {(0, 1): 0.0}, {(0, 1): 0.5}
    said = [
        ("a", "1", first),
        ("b", "1", first),
        ("c", "1", second),
        ("a", "2", tie),
        ("b", "2", tie),
        ("a", "3", {}),
    ]
    ranking = Ranking.of([Answer(who, (0, 1), implied, 0, question) for who, question, implied in said], 2)
    assert ranking.agreement == (2, 4)


# Films


def test_policies_are_filmed_from_the_same_start_states(finished_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished_run, tmp_path / "Pendulum-v1" / "done")
    shutil.copyfile(run / "checkpoint.npz", run / "early.npz")
    sources = read_sources([str(run), f"one={run}/early.npz", f"{run}@{STEP}"])
    assert [source.name for source in sources] == ["done", "one", f"done@{STEP}"]
    config = config_for(sources, None)
    assert config is not None
    task = task_of(config)
    played = [play(source, config, task, starts=2, seed=3) for source in sources]
    for episodes in played[1:]:
        for one, other in zip(played[0], episodes, strict=True):
            assert np.array_equal(one.observations, other.observations)
    assert not np.array_equal(played[0][0].observations[0], played[0][1].observations[0])
    path = tmp_path / "films" / "a.mp4"
    returns = film(sources[0], config, [path], seconds=0.2, seed=3)
    assert path.stat().st_size > 500
    shown = round(0.2 * task.fps)
    alone = play(sources[0], config, task, starts=1, seed=3)[0]
    assert list(returns) == pytest.approx([alone.true_rewards[:shown].sum()])


def test_exported_policies_play_like_their_run(finished_run: Path, tmp_path: Path) -> None:
    from teacher.teach import main

    exports = {"--sb3": tmp_path / "sb3.zip", "--huggingface": tmp_path / "hub"}
    for option, path in exports.items():
        assert main(["export", str(finished_run), option, str(path)]) == 0
    sources = read_sources(
        [str(finished_run), *map(str, exports.values()), str(tmp_path / "hub/policy.safetensors")]
    )
    config = config_for(sources, None)
    assert config is not None
    ours, *others = [play(source, config, task_of(config), starts=2, seed=3) for source in sources]
    for episodes in others:
        for one, other in zip(ours, episodes, strict=True):
            assert one.actions == pytest.approx(other.actions, abs=1e-4)


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Folders of films of different sizes, lengths and frame rates."""
    for name, count, fps, size, films in (("robot", 12, 10, (60, 90), 3), ("other", 50, 60, (200, 120), 2)):
        frames = [np.full((*size, 3), 4 * number, np.uint8) for number in range(count)]
        for number in range(films):
            encode(frames, tmp_path / name / f"{number}.mp4", fps, max(size))
    return [str(tmp_path / "robot"), str(tmp_path / "other")]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["robot"], "expected two or more policies"),
        (["robot", "missing"], "missing does not exist; expected a run, RUN@STEP, "),
        (["robot", "a/robot"], "two policies are called robot; name them, such as old=FILE new=FILE"),
        (["robot", "empty"], "empty contains no policy and no film; expected a run"),
        (["robot", "other", "--starts", "3"], "--starts: expected at most 2, the number of films in "),
        (["robot", "other", "--feedback", "best_worst"], "best_worst: expected 5 or more policies, got 2"),
        (["robot", "other", "--feedback", "rating"], "--feedback rating: its answers don't say which of two"),
        (["robot", "other", "--against", "old"], "--against: expected one of robot, other, got 'old'"),
        (["robot", "x=bad.zip"], "the policies' environment is unknown; choose one with -e ENV"),
        (["robot", "other", "--margin", "0.5"], "--margin: expected 0 or more and less than 0.5; got 0.5"),
        (["robot", "other", "-l", "0"], "--n_labels: expected 1 or more; got 0"),
        (["robot", "cut"], "cut/0.mp4 is not a readable film: "),
        (["robot", "other", "-n", "a b"], "--name: expected 1 to 100 letters, digits, _ or -; got 'a b'"),
    ],
)  # fmt: skip
def test_policies_that_cannot_be_compared_are_refused_by_name(
    words: list[str],
    error: str,
    folders: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree("robot", "a/robot")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.zip").write_bytes(b"")
    (tmp_path / "cut").mkdir()
    for number in range(3):
        (tmp_path / "cut" / f"{number}.mp4").write_bytes(Path("other/0.mp4").read_bytes()[:900])
    assert compare.main(["-n", "study", *words]) in {1, 2}
    said = capsys.readouterr().err
    assert error in said
    assert said.count("\n") == 1


def test_a_run_names_the_steps_of_its_checkpoints(finished_run: Path) -> None:
    with pytest.raises(TeacherError, match=rf"has no checkpoint of step 7, only of: {STEP}\. A run keeps"):
        read_sources([f"{finished_run}@7", str(finished_run)])


# Studies


@dataclass
class Site:
    """A site whose labelers answer each question at once, with a known order of the policies."""

    order: Mapping[str, int]  # places by the first letter of the films' folder
    study: Path
    settings: list[ExperimentSettings] = field(default_factory=list)
    asked: dict[UUID, Registration] = field(default_factory=dict)
    answers: list[tuple[UUID, str, str]] = field(default_factory=list)
    state: str = "running"
    failing: int = 1
    reason: str = ""
    kind: str = "human"

    def put_experiment(self, settings: ExperimentSettings, *, state: str | None = None) -> Any:
        """Note the settings."""
        self.settings.append(settings)
        self.state = state or self.state
        return SimpleNamespace(state=self.state, url="http://site/watch")

    def register(self, name: str, comparisons: Sequence[Registration]) -> None:
        """Let two labelers answer."""
        for each in comparisons:
            if each.uuid not in self.asked:
                keys = json.loads(self.study.read_text())
                known = {clip["key"]: at for at, clips in enumerate(keys["clips"]) for clip in clips}
                places = [self.order[keys["names"][known[item.key]]] for item in each.items]
                answer = KINDS[each.kind].known([-float(place) for place in places])[0]
                self.answers += [(each.uuid, "ann", answer), (each.uuid, "bo", answer)]
            assert self.asked.setdefault(each.uuid, each) == each

    def decisions(self, name: str, after: int, limit: int) -> Any:
        """Fail once, then tell that all questions are answered."""
        if self.failing:
            self.failing -= 1
            raise SiteUnreachableError("no response")
        return SimpleNamespace(last_seq=len(self.answers), state=self.state, open=0, active_labelers=2)

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the table of labels, with one that was taken back, one of a check and one void."""
        head = "comparison,labeler,meaning,status,purpose,undo,reason,labeler_kind\n"
        rows = [
            [uuid, who, answer, "counted", "judge", "", self.reason, self.kind]
            for uuid, who, answer in self.answers
        ]
        for wrong in (["counted", "judge", "x"], ["repeat", "repeat", ""], ["void", "judge", ""]):
            rows += [[uuid, "cy", "equal", *wrong, "", "human"] for uuid, _, _ in self.answers[:1]]
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        return list(csv.DictReader(io.StringIO(head + text.getvalue())))

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site instead of a real one; the working directory is ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    site = Site(
        {"robot": 2, "other": 1, "third": 3, "fourth": 4, "fifth": 5},
        tmp_path / "comparisons/study/study.json",
    )
    opened = SimpleNamespace(url="http://site", token="", storage=str(tmp_path / "store"), revive=None)
    monkeypatch.setattr(comparing, "open_site", lambda *_: opened)
    monkeypatch.setattr(comparing, "FeedbackClient", lambda *_: site)
    monkeypatch.setattr(comparing, "require_kinds", lambda *_: None)
    monkeypatch.setattr(comparing, "time", SimpleNamespace(sleep=lambda _: None))
    return site


def test_a_study_ends_when_the_order_is_known_and_reports_it(
    site: Site, folders: list[str], capsys: Any
) -> None:
    site.reason = "'=it moves <b>"
    command = ["robot", "other", "-n", "study", "--reasons"]
    assert compare.main(command) == 0
    assert site.state == "finished"
    assert site.settings[0].asks_reasons
    registered = list(site.asked.values())
    keys = {item.key for each in registered for item in each.items}
    assert len(keys) == 4  # two start states
    assert not any("robot" in key or "other" in key for key in keys)
    assert {Path("store", key).stat().st_size > 0 for key in keys} == {True}
    clips = json.loads(site.study.read_text())["clips"]
    films = [
        next(imageio_ffmpeg.read_frames(f"comparisons/study/{film['file']}"))
        for made in clips
        for film in made
    ]
    assert {max(film["size"]) for film in films} == {CLIP_SIZE}
    assert {film["fps"] for film in films} == {FPS}
    start = {clip["key"]: at for films in clips for at, clip in enumerate(films)}
    assert all(start[each.items[0].key] == start[each.items[1].key] for each in registered)
    first = {clip["key"] for clip in clips[0]}
    assert {each.items[0].key in first for each in registered} == {True, False}  # shuffled
    said = capsys.readouterr().out
    assert "The order is known." in said
    assert "Agreement between labelers: 100% of answers to the same question" in said
    report = json.loads(Path("comparisons/study/report.json").read_text())
    assert [(each["name"], each["place"]) for each in report["policies"]] == [
        ("other", [1, 1]),
        ("robot", [2, 2]),
    ]
    assert report["claims"] == [["other", "robot"]]
    assert report["answers"] == len(site.answers)
    assert (report["reasons"][0]["said"], report["reasons"][0]["text"]) == ("other > robot", "=it moves <b>")
    page = Path("comparisons/study/report.html").read_text()
    assert "=it moves &lt;b&gt;" in page
    assert all(Path("comparisons/study", name).exists() for name in ("films/robot-1.mp4", "report.png"))
    before = len(site.answers)
    assert compare.main(command) == 0  # it is over
    assert len(site.answers) == before
    assert compare.main([*command, "--seed", "2"]) == 2
    assert "has a study of robot, other with other settings" in capsys.readouterr().err
    site.study.write_text("{}")
    assert compare.main(command) == 1
    assert "study.json is damaged (" in capsys.readouterr().err


def test_a_worse_policy_fails_the_regression_check(site: Site, folders: list[str], capsys: Any) -> None:
    assert compare.main(["robot", "other", "-n", "study", "--against", "robot"]) == 0
    assert "other is not worse than robot." in capsys.readouterr().out
    assert compare.main(["robot", "other", "-n", "study", "--against", "other"]) == compare.WORSE == 3
    assert "robot is worse than other." in capsys.readouterr().out


def test_four_policies_are_compared_at_once_up_to_a_number_of_answers(
    site: Site, folders: list[str], capsys: Any
) -> None:
    for name in ("third", "fourth", "fifth"):
        shutil.copytree("other", name)
    words = ["robot", "other", "third", "fourth", "fifth", "--feedback", "best_worst"]
    site.kind = "model"
    assert compare.main([*words, "-n", "study", "-l", "10"]) == 0
    report = json.loads(Path("comparisons/study/report.json").read_text())
    assert 10 <= report["answers"] < 20
    assert report["over"] == f"there are {report['answers']} answers"
    assert [each["name"] for each in report["policies"]][::4] == ["other", "fifth"]
    assert {each.kind for each in site.asked.values()} == {"best_worst"}
    assert report["labelers"] == ["ann (model)", "bo (model)"]
    said = capsys.readouterr().out
    assert "The order is not known of: " in said
    assert "answers by 2 labelers (2 of them machines); there are " in said


def test_an_interrupted_study_reports_and_continues(
    site: Site, folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    command = ["robot", "other", "-n", "study"]
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "time", SimpleNamespace(sleep=interrupted))
        assert compare.main(command) == 130
    assert "interrupted; the same command continues" in capsys.readouterr().out
    assert compare.main(command) == 0
    assert "The order is known." in capsys.readouterr().out
