"""Scripted teachers judge segments."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment, slice_of
from teacher.envs.trajectory import Trajectory
from teacher.errors import BehaviorError, ConfigError
from teacher.queries.judges import (
    Behavior,
    Judge,
    ScriptedTeacher,
    answer_of,
    goal_of,
    oracle,
    true_return,
    value_of,
)
from teacher.settings.teachers import ErrorModel

MakeSegment = Callable[..., Segment]


@pytest.fixture
def wishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of functions in the current folder."""
    name = f"wishes_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "def low(steps): return -steps.observations[:, 0].max()\n"
        "def nothing(steps): return None\n"
        "def nan(steps): return float('nan')\n"
        "def broken(steps): return steps.height\n"
        "async def later(steps): return 1.0\n"
        "def leaves(steps): raise SystemExit(0)\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    return name


def test_a_perfect_teacher_is_the_oracle(make_segment: MakeSegment) -> None:
    teacher = ScriptedTeacher(ErrorModel(), seed=1)
    segments = [make_segment(seed) for seed in range(20)]
    segments.append(make_segment(21, true_return=segments[0].true_return))
    pairs = [(first, second) for first in segments for second in segments]
    assert [teacher(*pair) for pair in pairs] == [oracle(*pair) for pair in pairs]


def test_answers_are_decisions_or_probabilities(make_segment: MakeSegment) -> None:
    low, high = make_segment(1, true_return=1.0), make_segment(2, true_return=3.0)
    assert ScriptedTeacher(ErrorModel(mistake=1.0), 1)(low, high) == "first"
    assert ScriptedTeacher(ErrorModel(equal=2.0), 1)(low, high) == "equal"
    assert ScriptedTeacher(ErrorModel(skip=2.0), 1)(low, high) == "cant_tell"
    assert ScriptedTeacher(ErrorModel(soft=2.0), 1)(low, high) == pytest.approx(1 / (1 + np.e))


def test_errors_belong_to_the_pair_and_the_seed(make_segment: MakeSegment) -> None:
    pairs = [(make_segment(seed), make_segment(seed + 1)) for seed in range(0, 200, 2)]
    again = [tuple(Segment.from_bytes(segment.to_bytes()) for segment in pair) for pair in pairs]
    one, same, other = (ScriptedTeacher(ErrorModel(mistake=0.5), seed) for seed in (1, 1, 2))
    given = [one(*pair) for pair in pairs]
    assert [same(*pair) for pair in reversed(again)] == given[::-1]
    assert [other(*pair) for pair in pairs] != given


def test_errors_stay_as_published(make_segment: MakeSegment) -> None:
    pairs = [(make_segment(seed), make_segment(seed + 1)) for seed in range(1, 81, 2)]
    teacher = ScriptedTeacher(ErrorModel(mistake=0.1), seed=1)
    assert [n for n, pair in enumerate(pairs) if teacher(*pair) != oracle(*pair)] == [3, 14, 15, 23, 26, 39]


@pytest.mark.parametrize("error_model", ["mistake:0.3", "noisy:1"])
def test_errors_about_recorded_episodes_that_act_alike_are_independent(error_model: str) -> None:
    random, actions = np.random.default_rng(1), np.ones((8, 1), np.float32)
    episodes = [
        Trajectory.from_arrays(random.normal(size=(9, 2)).astype(np.float32), actions, np.full(8, reward))
        for reward in (0.1, 0.2) * 1000
    ]
    segments = [slice_of(episode, 2, 6) for episode in episodes]
    pairs = list(zip(segments[::2], segments[1::2], strict=True))
    one, same, other = (ScriptedTeacher(ErrorModel.parse(error_model), seed) for seed in (1, 1, 2))
    errs = np.array([one(*pair) == "first" for pair in pairs])
    assert errs.mean() == pytest.approx(
        0.3 if error_model == "mistake:0.3" else 1 / (1 + np.exp(0.4)), abs=0.06
    )
    assert abs(np.corrcoef(errs[:-1], errs[1:])[0, 1]) < 0.1
    assert [same(*pair) == "first" for pair in reversed(pairs)] == errs[::-1].tolist()
    assert abs(np.corrcoef(errs, [other(*pair) == "first" for pair in pairs])[0, 1]) < 0.1


@pytest.mark.parametrize("what", ["observations", "true_rewards"])
def test_errors_are_others_where_recorded_episodes_differ_in_one_thing(what: str) -> None:
    alike: dict[str, Any] = {
        "observations": np.zeros((5, 1)),
        "actions": np.ones((4, 1)),
        "true_rewards": np.zeros(4),
    }
    pairs = []
    for number in range(200):
        second = {**alike, "true_rewards": np.ones(4)}
        second[what] = second[what].copy()
        second[what][-1] += number
        episodes = Trajectory.from_arrays(**alike), Trajectory.from_arrays(**second)
        pairs.append([slice_of(episode, 0, 4) for episode in episodes])
    teacher = ScriptedTeacher(ErrorModel(mistake=0.5), seed=1)
    assert {teacher(*pair) for pair in pairs} == {"first", "second"}


def test_a_myopic_teacher_looks_at_the_end_and_a_discount_at_the_beginning(make_segment: MakeSegment) -> None:
    segment = make_segment(1, length=3)
    a, b, c = segment.true_rewards
    assert value_of(ErrorModel(myopic=0.5))(segment) == pytest.approx(0.25 * a + 0.5 * b + c)
    assert value_of(ErrorModel(discount=0.5))(segment) == pytest.approx(a + 0.5 * b + 0.25 * c)
    assert value_of(ErrorModel(myopic=0.0))(segment) == pytest.approx(c)
    assert goal_of(ErrorModel(myopic=0.5)) is true_return


def test_a_function_says_what_is_wanted(make_segment: MakeSegment, wishes: str) -> None:
    teacher = ScriptedTeacher(ErrorModel.parse(f"{wishes}:low"), seed=1)
    first, second = make_segment(1), make_segment(2)
    is_lower = first.observations[:, 0].max() < second.observations[:, 0].max()
    assert teacher(first, second) == ("first" if is_lower else "second")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:low", "cannot import no_such_module:low: ModuleNotFoundError: No module named"),
        ("{wishes}:lower", "AttributeError: .* has no attribute 'lower'"),
        ("this", "^expected module:function, got this$"),
        ("this:", "expected module:function, got this:"),
        (":low", "expected module:function, got :low"),
        ("{wishes}:number", "expected a function, but .*:number is 3"),
    ],
)
def test_a_function_that_is_not_there_is_refused(wishes: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Behavior(name.format(wishes=wishes))
    assert "this" not in sys.modules


def test_a_module_that_ends_the_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving_for_tests.py").write_text("import sys\nsys.exit()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot import leaving_for_tests:low: SystemExit$"):
        Behavior("leaving_for_tests:low")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("nothing", ":nothing returned None, but must return a finite number"),
        ("nan", ":nan returned nan, but must return a finite number"),
        ("broken", "failed: AttributeError: 'Segment' object has no attribute 'height'"),
        ("leaves", "failed: SystemExit: 0"),
        ("later", ":later returned <coroutine object later at .*, but must return a finite number"),
    ],
)
def test_non_number_is_an_error(make_segment: MakeSegment, wishes: str, function: str, says: str) -> None:
    with pytest.raises(BehaviorError, match=rf"^(?!--).*{says}.*; fix the function$"):
        Behavior(f"{wishes}:{function}")(make_segment(1))


def raises(first: Segment, second: Segment) -> float:
    raise KeyError("height")


def leaves(first: Segment, second: Segment) -> float:
    raise SystemExit


async def answers_later(first: Segment, second: Segment) -> float:
    return 1.0


def says_nan(first: Segment, second: Segment) -> float:
    return float("nan")


class SaysText:
    def __call__(self, first: Segment, second: Segment) -> str:
        return "the left one"


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (raises, "^.*test_judges:raises failed: KeyError: 'height'; fix the function$"),
        (leaves, "^.*test_judges:leaves failed: SystemExit; fix the function$"),
        (
            answers_later,
            "test_judges:answers_later returned <coroutine object .* or a probability; fix the function$",
        ),
        (
            says_nan,
            "test_judges:says_nan returned nan, but must return .* or a probability; fix the function$",
        ),
        (SaysText(), "test_judges:SaysText returned the left one, .* or a probability; fix the function$"),
        (lambda *_: 10**400, "test_judges:<lambda> returned 1000.* or a probability; fix the function$"),
    ],
)
def test_a_judge_that_gives_no_answer_is_named(make_segment: MakeSegment, judge: Judge, says: str) -> None:
    with pytest.raises(BehaviorError, match=says):
        answer_of(judge, make_segment(1), make_segment(2))


def test_teacher_errors_name_no_option(make_segment: MakeSegment) -> None:
    with pytest.raises(ConfigError, match=r"^judge: expected mistake:NUMBER with a probability"):
        ErrorModel.parse("mistake:2", "judge")
    with pytest.raises(ConfigError, match=r"^expected mistake:NUMBER with a probability"):
        ErrorModel(mistake=2.0)


def test_thresholds_can_follow_the_returns_that_the_agent_collects(make_segment: MakeSegment) -> None:
    pool = SegmentPool(4)
    teacher = ScriptedTeacher(ErrorModel.parse("equal:0.5,collected:2"), seed=1, pool=pool)
    bad, good = make_segment(1, length=4, true_return=1.0), make_segment(2, length=4, true_return=2.0)
    assert teacher(bad, good) == "second"  # the pool is empty; the average of both is 1.5
    pool.add([make_segment(number, length=4, true_return=value) for number, value in [(3, 90.0), (4, -3.0)]])
    assert teacher(bad, good) == "equal"
    pool.add([make_segment(5, length=4, true_return=0.5)])
    assert teacher(bad, good) == "second"  # the average of the newest two is 1.75


def test_thresholds_by_collected_segments_need_a_pool() -> None:
    with pytest.raises(ConfigError, match=r"^collected works only with teach -p synth"):
        ScriptedTeacher(ErrorModel.parse("skip:0.1,collected:200"), seed=1)


def test_a_teacher_that_skips_everything_is_found_out(make_segment: MakeSegment) -> None:
    teacher = ScriptedTeacher(ErrorModel.parse("skip:0.5"), seed=1)
    bad, worse = make_segment(1, true_return=-1.0), make_segment(2, true_return=-2.0)
    for _ in range(999):
        assert teacher(bad, worse) == "cant_tell"
    with pytest.raises(
        ConfigError,
        match=r"skip:0.5 gave no label for 1000 questions in a row; lower X in the teacher's skip:X; X",
    ):
        teacher(bad, worse)
