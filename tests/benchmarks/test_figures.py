"""Every figure that stands in a document is that of the result files, and the same on every page."""

import re

import pytest

from benchmarks import figures
from benchmarks.teaching_report import Row, as_markdown
from docs.result_pages import teaching_page


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
