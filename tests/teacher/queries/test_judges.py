"""Scripted teachers judge segments, and imperfect ones err as they should."""

import math
import sys
from collections.abc import Callable, Sequence
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
from teacher.settings.teachers import RETURNS_REMEMBERED, Answerer, ErrorModel
from tests.teacher.conftest import make_segment


@pytest.fixture
def wishes(here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of functions in the current folder."""
    name = f"wishes_{here.name.replace('-', '_')}"
    (here / f"{name}.py").write_text(
        "def low(steps): return -steps.observations[:, 0].max()\n"
        "def nothing(steps): return None\n"
        "def nan(steps): return float('nan')\n"
        "def broken(steps): return steps.height\n"
        "async def later(steps): return 1.0\n"
        "def leaves(steps): raise SystemExit(0)\n"
        "number = 3\n"
    )
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    return name


def test_a_perfect_teacher_is_the_oracle() -> None:
    teacher = ScriptedTeacher(ErrorModel(), seed=1)
    segments = [make_segment(seed) for seed in range(20)]
    segments.append(make_segment(21, true_return=segments[0].true_return))
    pairs = [(first, second) for first in segments for second in segments]
    assert [teacher(*pair) for pair in pairs] == [oracle(*pair) for pair in pairs]


def test_answers_are_decisions_or_probabilities() -> None:
    low, high = make_segment(1, true_return=1.0), make_segment(2, true_return=3.0)
    assert ScriptedTeacher(ErrorModel(mistake=1.0), 1)(low, high) == "first"
    assert ScriptedTeacher(ErrorModel(equal=2.0), 1)(low, high) == "equal"
    assert ScriptedTeacher(ErrorModel(skip=2.0), 1)(low, high) == "cant_tell"
    assert ScriptedTeacher(ErrorModel(soft=2.0), 1)(low, high) == pytest.approx(1 / (1 + np.e))


def test_errors_belong_to_the_pair_and_the_seed() -> None:
    pairs = [(make_segment(seed), make_segment(seed + 1)) for seed in range(0, 200, 2)]
    again = [tuple(Segment.from_bytes(segment.to_bytes()) for segment in pair) for pair in pairs]
    one, same, other = (ScriptedTeacher(ErrorModel(mistake=0.5), seed) for seed in (1, 1, 2))
    given = [one(*pair) for pair in pairs]
    assert [same(*pair) for pair in reversed(again)] == given[::-1]
    assert [other(*pair) for pair in pairs] != given


def test_errors_stay_as_published() -> None:
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


def test_a_myopic_teacher_looks_at_the_end_and_a_discount_at_the_beginning() -> None:
    segment = make_segment(1, length=3)
    a, b, c = segment.true_rewards
    assert value_of(ErrorModel(myopic=0.5))(segment) == pytest.approx(0.25 * a + 0.5 * b + c)
    assert value_of(ErrorModel(discount=0.5))(segment) == pytest.approx(a + 0.5 * b + 0.25 * c)
    assert value_of(ErrorModel(myopic=0.0))(segment) == pytest.approx(c)
    assert goal_of(ErrorModel(myopic=0.5)) is true_return


def test_a_function_says_what_is_wanted(wishes: str) -> None:
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
def test_non_number_is_an_error(wishes: str, function: str, says: str) -> None:
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
def test_a_judge_that_gives_no_answer_is_named(judge: Judge, says: str) -> None:
    with pytest.raises(BehaviorError, match=says):
        answer_of(judge, make_segment(1), make_segment(2))


def test_teacher_errors_name_no_option() -> None:
    with pytest.raises(ConfigError, match=r"^judge: expected mistake:NUMBER with a probability"):
        ErrorModel.parse("mistake:2", "judge")
    with pytest.raises(ConfigError, match=r"^expected mistake:NUMBER with a probability"):
        ErrorModel(mistake=2.0)


def test_thresholds_can_follow_the_returns_that_the_agent_collects() -> None:
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


def test_a_teacher_that_skips_everything_is_found_out() -> None:
    teacher = ScriptedTeacher(ErrorModel.parse("skip:0.5"), seed=1)
    bad, worse = make_segment(1, true_return=-1.0), make_segment(2, true_return=-2.0)
    for _ in range(999):
        assert teacher(bad, worse) == "cant_tell"
    with pytest.raises(
        ConfigError,
        match=r"skip:0.5 gave no label for 1000 questions in a row; lower X in the teacher's skip:X; X",
    ):
        teacher(bad, worse)


RETURNS = np.random.default_rng(1).normal(size=(4000, 2)).tolist()


def answers(text: str, pairs: Sequence[Sequence[float]] = RETURNS, seed: int = 1) -> list[float | None]:
    answerer = Answerer(ErrorModel.parse(text), seed)
    return [answerer.answer(first, second, str(key)) for key, (first, second) in enumerate(pairs)]


def share_wrong(text: str, wanted: Callable[[float, float], bool] = lambda first, second: True) -> float:
    given = zip(RETURNS, answers(text), strict=True)
    return float(
        np.mean([value != (first > second) for (first, second), value in given if wanted(first, second)])
    )


@pytest.mark.parametrize("text", ["oracle", "noisy:0", "soft:0", "mistake:0", "equal:0", "skip:-1e9"])
def test_the_oracle_prefers_the_larger_return(text: str) -> None:
    assert answers(text, [(2, 1), (1, 2), (-1, -1)]) == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_mistakes_come_with_their_probability_whatever_the_margin(probability: float) -> None:
    margin = math.sqrt(2) * 0.6745  # the median margin of two normal numbers
    tolerance = 4 * math.sqrt(probability * (1 - probability) / 2000)
    for wanted in (lambda a, b: abs(a - b) < margin, lambda a, b: abs(a - b) >= margin):
        assert share_wrong(f"mistake:{probability}", wanted) == pytest.approx(probability, abs=tolerance)


def test_noise_follows_bradley_terry() -> None:
    for low, high in [(0.0, 0.2), (0.8, 1.2), (2.0, 3.0)]:
        margins = [abs(a - b) for a, b in RETURNS if low <= abs(a - b) < high]
        expected = np.mean([math.exp(-m / 0.7) / (1 + math.exp(-m / 0.7)) for m in margins])
        tolerance = 4 * math.sqrt(expected * (1 - expected) / len(margins))
        found = share_wrong("noisy:0.7", lambda a, b, low=low, high=high: low <= abs(a - b) < high)  # type: ignore[misc]
        assert found == pytest.approx(expected, abs=tolerance)


def test_a_soft_answer_is_the_probability_that_noise_answers_with() -> None:
    soft = np.array(answers("soft:0.7"))
    np.testing.assert_allclose(
        soft, [math.exp(a / 0.7) / (math.exp(a / 0.7) + math.exp(b / 0.7)) for a, b in RETURNS]
    )
    assert answers("soft:1e-9", [(1000.0, -1000.0)]) == [1.0]


def test_mistakes_and_noise_cancel_out_where_both_happen() -> None:
    noisy, mistaken = (np.array(answers(text)) for text in ("noisy:0.7", "mistake:0.3"))
    right = np.array([float(a > b) for a, b in RETURNS])
    both = (noisy != right) ^ (mistaken != right)
    np.testing.assert_array_equal(np.array(answers("noisy:0.7,mistake:0.3")) != right, both)


def test_thresholds_are_shares_of_the_average_size_of_the_returns() -> None:
    """With sizes 4 and 2 the average is 3, with 1 and 1 more 2, with -4 and -4 more 8 / 3."""
    pairs = [(4, 2), (1, 1), (-4, -4)]
    assert answers("equal:0.6", pairs) == [1.0, 0.5, 0.5]
    assert answers("equal:0.7", pairs) == [0.5, 0.5, 0.5]
    assert answers("skip:0.6", pairs) == [1.0, None, None]
    assert answers("skip:-1.4", pairs) == [1.0, 0.5, None]
    assert answers("skip:0.6,equal:0.7", pairs) == [0.5, None, None]


def test_only_recent_returns_count_for_the_average() -> None:
    loud = Answerer(ErrorModel.parse("equal:0.5"), 1, seen=[1000.0] * RETURNS_REMEMBERED)
    assert loud.answer(2, 1, "first") == 0.5
    for _ in range(RETURNS_REMEMBERED // 2):
        answer = loud.answer(2, 1, "later")
    assert answer == 1.0


def test_equal_and_skip_make_no_mistakes() -> None:
    assert set(answers("equal:1e9,mistake:1")) == {0.5}
    assert set(answers("skip:1e9,mistake:1")) == {None}


def test_the_same_seed_and_key_give_the_same_answer_in_any_order() -> None:
    text = "noisy:0.5,mistake:0.2"
    backwards = Answerer(ErrorModel.parse(text), 1)
    again = [
        backwards.answer(first, second, str(key)) for key, (first, second) in reversed([*enumerate(RETURNS)])
    ]
    assert again[::-1] == answers(text)
    assert answers(text, seed=2) != answers(text)


def test_parts_are_read_in_any_order() -> None:
    assert ErrorModel.parse("oracle") == ErrorModel()
    assert ErrorModel.parse("equal:0.5,mistake:1e-1") == ErrorModel(mistake=0.1, equal=0.5)
    assert ErrorModel.parse("mistake:0.1,my.module:flip") == ErrorModel(
        mistake=0.1, function="my.module:flip"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mistaken:0.1", "expected one or more of oracle, noisy:NUMBER"),
        ("", "expected one or more of oracle"),
        ("mistake", "expected mistake:NUMBER with a probability from 0 to 1"),
        ("mistake:ten", "a probability"),
        ("mistake:1.1", "a probability"),
        ("noisy:nan", "a temperature"),
        ("noisy:-1", "a temperature"),
        ("noisy:inf", "a temperature"),
        ("equal:-0.1", "a share of the average return, 0 or more"),
        ("myopic:1.1", "a discount"),
        ("a:b:c", "expected one or more of oracle"),
        ("module:", "expected one or more of oracle"),
        ("mistake:0.1,mistake:0.2", "mistake may appear only once"),
        ("noisy:1,soft:1", "noisy or soft, not both"),
        ("myopic:0.9,a:b", "myopic or function, not both"),
        ("collected:200", "collected:NUMBER together with skip or equal"),
        ("collected:200,mistake:0.1", "collected:NUMBER together with skip or equal"),
        ("equal:0.1,collected:0", "a number of segments, 1 or more"),
        ("equal:0.1,collected:2.5", "collected:NUMBER with an integer"),
    ],
)
def test_a_teacher_that_cannot_be_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"--teacher: .*{says}.*got {text!r}".replace("(", r"\(")) as error:
        ErrorModel.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"), [("mistake", 1.5), ("noisy", -1.0), ("noisy", math.nan), ("equal", -0.1)]
)
def test_numbers_that_do_not_fit_are_refused_from_python_too(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"expected {name}:NUMBER with a .*; got "):
        ErrorModel(**{name: value})  # type: ignore[arg-type]


def test_parts_that_exclude_each_other_are_refused_from_python_too() -> None:
    with pytest.raises(ConfigError, match="expected noisy or soft, not both"):
        ErrorModel(noisy=1.0, soft=1.0)
