"""Test how imperfect teachers answer a pair of returns."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from teacher.errors import ConfigError
from teacher.settings.teachers import RETURNS_REMEMBERED, Answerer, ErrorModel

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
