"""Test what many seeds say, and that every figure in a document is that of the result files."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import figures
from benchmarks.results import Curve, append, bootstrap, curve_steps, interval, iqm, load
from benchmarks.teaching_report import Row, as_markdown
from docs.result_pages import teaching_page


def test_a_curve_averages_the_episodes_of_each_twentieth() -> None:
    curve = Curve(steps=200)
    for step, episode_return in [(1, 1.0), (10, 3.0), (11, 5.0), (200, 7.0), (204, 8.0)]:
        curve.add(step, episode_return)
    assert curve.means() == [2.0, 5.0, *[None] * 17, 7.5]
    assert curve_steps(200)[[0, 1, -1]].tolist() == [5, 15, 195]


def test_a_damaged_line_is_named(tmp_path: Path, damaged: Callable[[bytes], Iterator[bytes]]) -> None:
    path = tmp_path / "results.jsonl"
    append(path, {"seed": 1, "labels": 300})
    append(path, {"seed": 2, "labels": 300})
    refused = set()
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            load(path)
        except SystemExit as end:
            refused.add(str(end.code))
    lines = (1, 2, 3)
    assert refused == {f"{path} line {line}: not a JSON object; remove the line" for line in lines}


def test_the_iqm_is_the_mean_of_the_middle_half() -> None:
    assert iqm(np.array([9.0, 1.0, 2.0, -70.0, 3.0])) == pytest.approx(2.0)
    assert iqm(np.arange(8.0)) == pytest.approx(3.5)


def test_the_interval_is_that_of_scipy() -> None:
    from scipy import stats  # takes as long to import as all else here

    values = np.random.default_rng(1).normal(100, 10, size=8)
    expected = stats.bootstrap(
        (values,),
        lambda drawn, axis: stats.trim_mean(drawn, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert interval(bootstrap(values, np.random.default_rng(3))) == pytest.approx(tuple(expected), abs=0.5)


def test_results_are_kept_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert load(path) == []
    append(path, {"return": 1.5})
    append(path, {"return": None})
    assert load(path) == [{"return": 1.5}, {"return": None}]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return figures.results()


@pytest.mark.parametrize("page", figures.SENTENCES)
def test_sentences_have_the_figures_of_the_results(page: str, rows: list[Row]) -> None:
    text = (figures.ROOT / page).read_text()
    assert figures.written(page, text, figures.by_name(rows)) == text


def test_the_tables_are_those_of_the_results(rows: list[Row]) -> None:
    lines = teaching_page().splitlines()
    assert [line for line in map(as_markdown, rows) if line not in lines] == []


def test_figures_on_two_pages_are_the_same() -> None:
    assert figures.differences() == []


def test_wrong_figure_is_rewritten_alone(rows: list[Row]) -> None:
    text = (figures.ROOT / figures.COMPARISON).read_text()
    found = re.search(r"On Reacher, 175 labels reach f = (\S+), and 350 reach (\d\.\d\d)", text)
    assert found is not None
    wrong = text.replace(found[0], "On Reacher, 175 labels reach f = 0.12, and\n350 reach 0.34")
    again = figures.written(figures.COMPARISON, wrong, figures.by_name(rows))
    assert again == wrong.replace("0.12", found[1]).replace("0.34", found[2])


def test_a_sentence_that_is_no_longer_on_its_page_is_noticed(rows: list[Row]) -> None:
    text = (
        (figures.ROOT / figures.COMPARISON)
        .read_text()
        .replace("On Reacher, 175 labels", "On Reacher, labels")
    )
    with pytest.raises(
        ValueError, match=r"docs/comparison.md must contain this once, not 0 times: On Reacher, 175"
    ):
        figures.written(figures.COMPARISON, text, figures.by_name(rows))
