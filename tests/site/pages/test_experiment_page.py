"""Test what a researcher sees of an experiment and where its curves go, and the list of experiments."""

import json
import math
import re
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import escape
from pytest_django import DjangoAssertNumQueries

from human_feedback_site.feedback.models import Experiment, Invite, Labeler, Lease
from human_feedback_site.feedback.pages.charts import line_chart, nice_ticks, short_number
from human_feedback_site.feedback.services import experiments
from tests.site.conftest import RUN, Browser, Invited, Trainer, client_of, side_of
from tests.site.pages.conftest import html_of

PATH = "/experiments/hopper/"


def text(client: Client, path: str = PATH) -> str:
    return html_of(client, path)


def test_labelers_are_redirected_to_labeling(trainer: Trainer, browser: Browser) -> None:
    response: Any = browser.client.get(PATH)
    assert (response.status_code, response.headers["Location"]) == (302, "/experiments/hopper/label")


def test_admin_sees_the_page_without_labeling(
    trainer: Trainer, researcher_browser: Client, root: Client
) -> None:
    assert "hopper/label" not in text(root)
    assert "hopper/label" in text(researcher_browser)


@pytest.mark.parametrize("path", [PATH, "/experiments/hopper/label", "/", "/session"])
def test_pages_are_read_only_and_not_kept_by_caches(researcher_browser: Client, path: str) -> None:
    assert researcher_browser.post(path).status_code == 405
    assert "no-store" in researcher_browser.get(path).headers["Cache-Control"]


@pytest.mark.both_databases
def test_labels_are_counted(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    uuids = trainer.register(4)
    browser.answer(browser.lease()[0])
    trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids[:1]})
    Experiment.objects.update(waiting_for=9)
    html = "".join(text(researcher_browser).split())
    for number, name in ((3, "asked"), (2, "open"), (1, "labelingnow"), (9, "answerstrainingiswaitingfor")):
        assert f'<bclass="number">{number}</b><spanclass="mutedsmall">{name}</span>' in html


def test_empty_experiment_says_so(trainer: Trainer, researcher_browser: Client) -> None:
    html = text(researcher_browser)
    assert "The learning curve appears here" in html
    assert "No comparisons yet" in html


def test_page_leads_with_agreement(trainer: Trainer, researcher_browser: Client) -> None:
    values = {
        "agent/true_reward_per_episode": 5.0,
        "predictor/fresh_accuracy": 0.75,
        "predictor/loss": 0.5,
        "labels/asked": 7,
        "time/seconds_left": 5 * 3600,
        "time/seconds_waited": 600.0,
        "my/tag": 3.0,
    }
    points = [{"step": step, "values": {**values, "predictor/loss": step / 10}} for step in (0, 1000, 2000)]
    trainer.post(f"{trainer.path}/points", {"points": points, "waiting_for": None})
    trainer.film(9)
    html = text(researcher_browser)
    inside = [
        html.index(each)
        for each in (
            'id="unscored"',
            'id="details" open',
            "Predictor agreement with new answers",
            "Predictor loss",
            '<details class="card more" id="environment-curves">',
            "The environment’s own reward per episode",
            '<details class="card more" id="more-curves">',
            "my/tag",
        )
    ]
    assert inside == sorted(inside)
    assert 'd="M0.0 1000.0L500.0 500.0L1000.0 0.0"' in html
    assert html.count("<figcaption>") == 4
    assert "labels/asked" not in html
    assert re.search(r">5\.0 h</b>\s*<span[^>]*>training time left<", html)
    assert re.search(r">10 min</b>\s*<span[^>]*>spent waiting for answers<", html)
    Experiment.objects.update(state="finished")
    assert re.search(r">–</b>\s*<span[^>]*>training time left<", text(researcher_browser))


def test_comparison_shows_clips_returns_and_labels(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    trainer.register()
    mia = invite("mia")
    [lease] = mia.lease()
    label = mia.answer(lease, side_of(lease, "second"))
    again = mia.undo(label)["lease"]
    mia.answer(again, "equal")
    html = text(researcher_browser)
    assert html.count('preload="none"') == 2
    links = [part.split('"')[0] for part in html.split('<video src="')[1:]]
    assert all(researcher_browser.get(link, follow=True).status_code == 200 for link in links)
    assert html.index(">true return 2.00<") < html.index(">true return 1.00<")
    side = side_of(lease, "second").capitalize()
    assert html.index(f'{side} <span class="muted">(Second)</span>') < html.index("undone</")
    assert html.index("undone</") < html.rindex("Equal")
    assert "Second is better" not in html[: html.index("undone</")]
    assert "<b>Equal</b>" in html
    assert html.count('<span dir="auto">mia</span>') == 2


def test_clips_are_named_with_the_sides_labelers_saw(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    trainer.overlap(2)
    trainer.register()
    captions = re.compile(r"<figcaption.*?</figcaption>", re.DOTALL)

    def said() -> list[list[str]]:
        plain = re.compile(r">\s*([^<>]*[^<>\s])\s*<")
        return [plain.findall(each) for each in captions.findall(text(researcher_browser))]

    assert said() == [["First", "true return 2.00"], ["Second", "true return 1.00"]]
    for name, swapped in (("ann", True), ("bob", False)):
        who = invite(name)
        [lease] = who.lease()
        Lease.objects.filter(uuid=lease["uuid"]).update(swapped=swapped)
        who.answer(lease, "left")
        if swapped:
            assert said() == [
                ["First", "shown on the right", "true return 2.00"],
                ["Second", "shown on the left", "true return 1.00"],
            ]
    both = "shown on the left to 1, on the right to 1"
    assert said() == [["First", both, "true return 2.00"], ["Second", both, "true return 1.00"]]
    html = text(researcher_browser)
    for name, clip in (("ann", "Second"), ("bob", "First")):
        row = re.search(rf"<span[^>]*>{name}</span>.*?</li>", html, re.DOTALL)
        assert row is not None
        assert f'Left <span class="muted">({clip})</span>' in row[0]


def test_better_clip_is_marked(browser: Browser, lease: Any, researcher_browser: Client) -> None:
    browser.answer(lease, side_of(lease, "second"))
    first, second = text(researcher_browser).split("<figure")[1:3]
    assert "preferred" not in first
    assert "preferred" in second


def test_comparisons_have_pages_of_twenty(trainer: Trainer, researcher_browser: Client) -> None:
    trainer.register(21)
    assert text(researcher_browser).count("<video") == 40
    assert text(researcher_browser, f"{PATH}?page=2").count("<video") == 2


@pytest.mark.both_databases
def test_number_of_statements_is_constant(
    trainer: Trainer,
    browser: Browser,
    researcher_browser: Client,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    trainer.register(8)
    for lease in browser.lease(5):
        browser.answer(lease)
    with django_assert_max_num_queries(22):
        text(researcher_browser)


def test_user_text_is_escaped(trainer: Trainer, researcher_browser: Client) -> None:
    trainer.put(prompt="<script>alert(1)</script>", env_id="<script>alert(1)</script>")
    for path in ("/", PATH, f"{PATH}label"):
        html = text(researcher_browser, path)
        assert "<script>alert" not in html
        assert escape("<script>alert(1)</script>") in html


@pytest.mark.parametrize("state", ["paused", "finished"])
def test_stopped_training_waits_for_nobody(trainer: Trainer, researcher_browser: Client, state: str) -> None:
    Experiment.objects.update(waiting_for=919)
    assert ">919<" in text(researcher_browser)
    Experiment.objects.update(state=state)
    assert ">919<" not in text(researcher_browser)
    assert "919 answers" not in text(researcher_browser, "/")


def test_predicted_rewards_are_shown_to_researchers_alone(
    trainer: Trainer, browser: Browser, researcher_browser: Client
) -> None:
    def curves(address: str) -> int:
        return text(researcher_browser, address).count('<svg class="reward" viewBox="0 0 100 30"')

    def read(address: str) -> bytes:
        response = browser.client.get(address)
        assert response.status_code == 200
        return response.content

    trainer.film(100)
    [asked] = trainer.register(1)
    [lease] = browser.lease(1)
    detail = f"/experiments/hopper/comparisons/{asked}"
    trainer.predict(step=20480, films={100: [0.625]})
    assert curves(detail) == 0  # the researcher may yet judge it
    own = [
        f"/api/v1{trainer.path}/progress",
        f"/api/v1{trainer.path}/examples",
        "/experiments/hopper/label",
        "/",
    ]
    before = [read(address) for address in own]
    browser.answer(lease)
    assert curves(detail) == curves("/experiments/hopper/comparisons") == 2
    assert curves("/experiments/hopper/") == 2 + 2  # with two films
    assert "predictor of step 20480" in text(researcher_browser, detail)
    assert 'd="M0 30L100 0"' in text(researcher_browser, detail)
    after = [read(f"/experiments/hopper/{page}") for page in ("history", "done")]
    for content in [*before, *after, json.dumps(lease).encode()]:
        assert not any(
            secret in content for secret in (b"0.625", b"rewards", b'class="reward"', b"M0 30L100 0")
        )


def test_curve_spans_first_to_last_value() -> None:
    chart = line_chart([(0, 0.0), (50, 5.0), (100, 10.0)])
    assert chart is not None
    assert chart.path == "M0.0 1000.0L500.0 500.0L1000.0 0.0"
    assert chart.end == (100.0, 0.0)
    assert chart.latest == "10"


def test_ticks_are_at_their_values() -> None:
    chart = line_chart([(0, 0.0), (200, 10.0)])
    assert chart is not None
    assert [(tick.position, tick.text) for tick in chart.y_ticks] == [
        (100.0, "0"),
        (80.0, "2"),
        (60.0, "4"),
        (40.0, "6"),
        (20.0, "8"),
        (0.0, "10"),
    ]
    assert [(tick.position, tick.text) for tick in chart.x_ticks] == [
        (0.0, "0"),
        (25.0, "50"),
        (50.0, "100"),
        (75.0, "150"),
        (100.0, "200"),
    ]


@pytest.mark.parametrize("points", [[(0, 3.0)], [(10, 3.0), (20, 3.0)], [(10, 0.0), (20, 0.0)], [(0, -4.0)]])
def test_flat_curve_is_inside_the_plot(points: list[tuple[float, float]]) -> None:
    chart = line_chart(points)
    assert chart is not None
    assert 0 < chart.end[1] < 100
    assert len(chart.y_ticks) > 1


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_no_curve_without_finite_values(values: list[float]) -> None:
    assert line_chart(list(enumerate(values))) is None


def test_non_finite_values_are_left_out() -> None:
    assert line_chart([(0, 1.0), (1, math.nan), (2, 2.0)]) == line_chart([(0, 1.0), (2, 2.0)])


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.2, 7.9), (98, 1040), (0.0012, 0.0019), (-5e6, -1e6), (1e9, 3e9)]
)
def test_ticks_are_round_evenly_spaced_and_enclose_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 5)
    step = ticks[1] - ticks[0]
    slack = step * 1e-6  # of floating-point numbers
    assert ticks[0] - slack <= low < ticks[0] + step
    assert ticks[-1] - step < high <= ticks[-1] + slack
    assert 3 <= len(ticks) <= 8
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - round_step) for round_step in (1, 2, 5)) < 1e-6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.05, "0.05"),
        (-3, "-3"),
        (999, "999"),
        (999.9, "1k"),
        (1040, "1.04k"),
        (-350_000, "-350k"),
        (1.2e6, "1.2M"),
        (5e9, "5G"),
        (0.30000000000000004, "0.3"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.django_db
def test_anonymous_users_are_asked_to_sign_in() -> None:
    response = Client().get("/")
    assert (response.status_code, response.headers["Location"]) == (302, "/accounts/login/?next=/")


@pytest.mark.both_databases
def test_researchers_see_own_experiments(
    trainer: Trainer, stranger: Trainer, browser: Browser, researcher_browser: Client
) -> None:
    trainer.register(3)
    browser.answer(browser.lease()[0])
    html = html_of(researcher_browser, "/")
    assert "/experiments/hopper/" in html
    assert "Which hops higher?" in html
    assert "running" in html
    assert '<progress value="1" max="700"' in html
    assert "walker" not in html


def test_an_admin_sees_every_experiment(trainer: Trainer, stranger: Trainer, root: Client) -> None:
    html = html_of(root, "/")
    assert "/experiments/hopper/" in html
    assert "/experiments/walker/" in html


@pytest.mark.both_databases
def test_labelers_see_remaining_answers(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    browser.answer(browser.lease()[0])
    link = trainer.post(f"{trainer.path}/invites", {"labeler": "you"})["invite_url"]
    Invite.objects.update(answers_wanted=12)
    browser.client.get(link)
    assert '<progress value="0" max="12"' in html_of(browser.client, "/")
    browser.answer(browser.lease()[0])
    assert '<progress value="1" max="12"' in html_of(browser.client, "/")


def test_labelers_see_only_invited_experiments(trainer: Trainer, stranger: Trainer, browser: Browser) -> None:
    html = html_of(browser.client, "/")
    assert "/experiments/hopper/label" in html
    assert '"/experiments/hopper/"' not in html
    assert "<progress" not in html
    assert "walker" not in html


def test_waiting_training_is_shown(trainer: Trainer, browser: Browser) -> None:
    Experiment.objects.update(waiting_for=1)
    assert "training is waiting for 1 answer<" in html_of(browser.client, "/")
    Experiment.objects.update(waiting_for=5)
    assert "training is waiting for 5 answers<" in html_of(browser.client, "/")
    Experiment.objects.update(state="finished")
    html = html_of(browser.client, "/")
    assert "training is waiting" not in html
    assert "finished" in html


def test_researchers_without_experiments_get_instructions(researcher: User) -> None:
    assert "teach -p human" in html_of(client_of(researcher), "/")


def test_labelers_without_experiments_read_about_invitations(browser: Browser) -> None:
    Labeler.objects.get().experiments.clear()
    html = html_of(browser.client, "/")
    assert "invitation link" in html
    assert "teach -p" not in html


@pytest.mark.both_databases
def test_number_of_statements_of_the_list_is_constant(
    trainer: Trainer, researcher_browser: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(12):
        experiments.put_experiment(trainer.user, f"more-{number}", uuid4(), {**RUN, "n_labels": None})
    with django_assert_max_num_queries(4):
        assert "more-11" in html_of(researcher_browser, "/")


def test_a_long_list_has_pages(trainer: Trainer, researcher_browser: Client) -> None:
    for number in range(30):
        experiments.put_experiment(trainer.user, f"more-{number}", uuid4(), {**RUN, "n_labels": None})
    assert "/experiments/hopper/" not in html_of(researcher_browser, "/")
    assert "/experiments/hopper/" in html_of(researcher_browser, "/?page=2")
    assert "/experiments/hopper/" in html_of(researcher_browser, "/?page=99")


def test_labeler_has_one_name(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    shown = re.compile(r'<span class="account"[^>]*>([^<]+)</span>')
    trainer.register()
    browser.answer(browser.lease()[0])
    pages = ("/", "/experiments/hopper/label", "/experiments/hopper/history", "/experiments/hopper/done")
    assert {page: shown.findall(browser.client.get(page).content.decode()) for page in pages} == {
        page: ["you"] for page in pages
    }
    link = trainer.invite("mia")
    assert "You are signed in as you;" in browser.client.get(link).content.decode()
    html = researcher_browser.get("/experiments/hopper/").content.decode()
    assert shown.findall(html) == ["ada"]
    assert re.findall(r'<th scope="row"[^>]*>([^<]+)</th>|<span dir="auto">(you[^<]*)</span>', html) == [
        ("you", ""),
        ("", "you"),
    ]
