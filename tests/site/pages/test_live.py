"""Test what the experiment page shows of how it goes just now, and asks for again every few seconds."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.translation import override

from human_feedback_site.feedback.models import Comparison, Experiment, Label
from human_feedback_site.feedback.pages import live
from human_feedback_site.feedback.selectors import monitoring
from tests.site.conftest import Browser, Invited, Trainer, side_of

PATH = "/experiments/hopper/live"


@pytest.fixture
def look(trainer: Trainer) -> Callable[[], monitoring.ExperimentStatus]:
    """Return how the experiment goes, read anew."""

    def look() -> monitoring.ExperimentStatus:
        cache.clear()
        return monitoring.status_now(trainer.experiment)

    return look


def report(trainer: Trainer, step: int = 100, **values: float) -> None:
    named = {tag.replace("__", "/"): value for tag, value in values.items()}
    trainer.post(f"{trainer.path}/points", {"points": [{"step": step, "values": named}]})


def html_of(client: Client) -> str:
    response = client.get(PATH)
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def test_unchanged_state_is_not_sent(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    trainer.film(100)
    first = researcher_browser.get(PATH)
    known = {"If-None-Match": first.headers["ETag"]}
    again = researcher_browser.get(PATH, headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert researcher_browser.get(PATH, headers={**known, "Accept-Language": "zh-CN"}).status_code == 200
    researcher_browser.post("/experiments/hopper/pause")
    assert researcher_browser.get(PATH, headers=known).status_code == 200


@pytest.mark.both_databases
def test_number_of_statements_is_constant(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    def statements() -> int:
        cache.clear()
        with CaptureQueriesContext(
            connection,
        ) as queries:
            researcher_browser.get(PATH)
        return len(queries)

    first = statements()
    trainer.overlap(2)
    trainer.register(4)
    for name in ("ann", "bea"):
        labeler = invite(name)
        for lease in labeler.lease(4):
            labeler.answer(lease)
    for step in (100, 200):
        report(trainer, step, agent__true_reward_per_episode=step, predictor__accuracy=0.5)
        trainer.film(step)
    assert statements() == first <= 18


def test_quality_cached(
    browser: Browser, researcher_browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "_CROWD_SECONDS", 600.0)
    researcher_browser.get(PATH)
    with CaptureQueriesContext(connection) as queries:
        researcher_browser.get(PATH)
    assert len(queries) <= 11
    assert not [query for query in queries if "said" in query["sql"]]


@pytest.mark.both_databases
def test_pace_is_that_of_the_last_ten_minutes(
    trainer: Trainer, browser: Browser, look: Callable[[], monitoring.ExperimentStatus]
) -> None:
    trainer.register(4)
    for lease in browser.lease(4):
        browser.answer(lease)
    Experiment.objects.update(created_at=Now() - timedelta(minutes=4), n_labels=12)
    assert look().rate == pytest.approx(1.0, rel=0.3)  # it has existed for four minutes
    assert look().minutes_left == pytest.approx(8.0, rel=0.3)
    Experiment.objects.update(created_at=Now() - timedelta(days=1), overlap_more=3, overlap_share=0.5)
    one = Label.objects.first()
    assert one is not None
    Label.objects.filter(pk=one.pk).update(created_at=Now() - timedelta(minutes=11))
    assert look().rate == pytest.approx(0.3)
    assert look().minutes_left == pytest.approx(8 * 2 / 0.3)  # half of the pairs are judged thrice


def test_unknown_time_left_is_not_shown(
    trainer: Trainer, browser: Browser, look: Callable[[], monitoring.ExperimentStatus]
) -> None:
    assert look().minutes_left is None
    trainer.register()
    browser.answer(browser.lease()[0])
    Experiment.objects.update(n_labels=None)
    assert look().minutes_left is None


def test_queue_is_as_old_as_its_oldest_open_comparison(
    trainer: Trainer, browser: Browser, look: Callable[[], monitoring.ExperimentStatus]
) -> None:
    assert look().queue_minutes is None
    trainer.register(2)
    newest, oldest = Comparison.objects.order_by("-pk")
    for age, each in ((5, newest), (30, oldest)):
        Comparison.objects.filter(pk=each.pk).update(created_at=Now() - timedelta(minutes=age))
    assert look().queue_minutes == pytest.approx(30, abs=2)
    trainer.post(f"{trainer.path}/cancel", {"comparisons": [str(oldest.uuid)]})
    assert look().queue_minutes == pytest.approx(5, abs=2)


@pytest.mark.parametrize(
    ("minutes", "text"),
    [(None, "–"), (0.4, "< 1 min"), (45.2, "45 min"), (150, "2.5 h"), (60 * 24 * 3.5, "3.5 d")],
)
def test_durations_use_their_largest_unit(minutes: float | None, text: str) -> None:
    assert live._duration(minutes) == text


def test_durations_are_translated() -> None:
    with override("zh-hans"):
        assert [live._duration(minutes) for minutes in (0.4, 45, 150, 6000)] == [
            "< 1 分钟",
            "45 分钟",
            "2.5 小时",
            "4.2 天",
        ]


def test_training_points_are_shown(trainer: Trainer, researcher_browser: Client) -> None:
    report(trainer, 100, labels__desired=41.6, predictor__accuracy=0.5)
    report(trainer, 200, labels__desired=57.9, predictor__accuracy=0.815)
    html = html_of(researcher_browser)
    assert '<b class="number">58</b><span class="muted small">due</span>' in html
    assert '<b class="number">82%</b><span class="muted small">held-out accuracy</span>' in html


def disagree(trainer: Trainer, invite: Invited) -> None:
    """Let two labelers judge four pairs, one of them otherwise than the other once."""
    trainer.overlap(2)
    trainer.register(4)
    for name, said in {"ann": ["first"] * 4, "bea": ["first", "second", "first", "first"]}.items():
        labeler = invite(name)
        for lease, which in zip(sorted(labeler.lease(4), key=lambda x: x["comparison"]), said, strict=True):
            labeler.answer(lease, side_of(lease, which), response_ms=2_000)


@pytest.mark.both_databases
def test_agreement_and_labeler_quality_are_shown(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    disagree(trainer, invite)
    Experiment.objects.update(stop_failures=1)
    trainer.experiment.participations.filter(labeler__name="bea").update(stopped_at=Now())
    html = html_of(researcher_browser)
    assert '<b class="number">0.00</b><span class="muted small">agreement over 4 questions</span>' in html
    ann, bea = html.split('<th scope="row" dir="auto">')[1:]
    assert ann.startswith("ann</th>")
    assert "active</span>" in ann
    assert "stopped</span>" in bea
    assert '<td class="number">75% <span class="muted">/ 4</span></td>' in ann
    assert '<td class="number">2.0 s</td>' in bea


@pytest.mark.parametrize("tag", ["predictor/contradictions", "predictor/label_errors"])
def test_disagreement_is_shown_apart_from_attention_checks(
    trainer: Trainer, invite: Invited, researcher_browser: Client, tag: str
) -> None:
    for step in (100, 200):
        report(trainer, step, **{tag.replace("/", "__"): 0.0})
    html = html_of(researcher_browser)
    assert "<span>Share of answers that contradict the predictor</span>" in html
    assert "Mistakes with a pattern are learned, so they are not in this share." in html
    assert "Attention checks, repeats or overlap would show some of them." in html
    disagree(trainer, invite)
    cache.clear()
    html = html_of(researcher_browser)
    assert "Answers that differ from most others’: 25% of 8" in html
    assert "would show some of them" not in html
    assert "Estimated share of wrong" not in html


def test_videos_are_shown_while_they_exist(trainer: Trainer, researcher_browser: Client) -> None:
    assert films_in(html_of(researcher_browser)) == []
    for step in range(0, 800, 100):
        trainer.film(step)
    html = html_of(researcher_browser)
    assert films_in(html) == [0, 100, 300, 400, 600, 700]  # without scores, a few are listed
    assert 'id="unscored"' in html
    page = researcher_browser.get("/experiments/hopper/").content.decode()
    link = "/experiments/hopper/episodes/700"
    assert page.index('src="/experiments/hopper/episodes/0"') < page.index(f'src="{link}"')
    assert researcher_browser.get(link, follow=True).headers["Content-Type"] == "video/mp4"
    Experiment.objects.update(media_deleted_at=Now() + timedelta(minutes=1))
    assert films_in(html_of(researcher_browser)) == []


def films_in(html: str) -> list[int]:
    return [int(step) for step in re.findall(r'class="film" href="/experiments/hopper/episodes/(\d+)"', html)]


def test_films_are_points_of_one_curve(
    trainer: Trainer, stranger: Trainer, researcher_browser: Client
) -> None:
    for step in (100, 200, 400):
        trainer.film(step)
    trainer.predict(films={100: [-1.0, 0.0], 200: [0.5, 1.5], 999: [5.0]})
    report(trainer, step=50, labels__answered=3)
    report(trainer, step=200, labels__answered=3)
    html = html_of(researcher_browser)
    assert films_in(html) == [100, 200]
    assert 'aria-label="Step 100, after 0 answers, score -0.5"' in html
    assert 'data-curve="M0 30L100 18"' in html
    assert '<path class="marks" d="M250 1000v-40"/>' in html  # at step 50 of 200
    assert '<path d="M500.0 1000.0L1000.0 0.0"/>' in html
    assert '<details class="card more" id="details">' in html
    trainer.predict(films={400: [1.0]})
    assert films_in(html_of(researcher_browser)) == [400]  # the others have scores of another predictor
    stranger.film(400)
    stranger.predict(films={400: [0.25]})
    assert "walker" not in html_of(researcher_browser)
    Experiment.objects.update(owner=trainer.user)
    assert "<option>walker</option>" in html_of(researcher_browser)
    both = researcher_browser.get(PATH, {"with": "walker"}).content.decode()
    assert '<path class="other" d="M1000.0 ' in both
    assert "The dashed curve is walker" in both
    assert "The dashed curve" not in researcher_browser.get(PATH, {"with": "else\0"}).content.decode()


def test_one_sentence_says_how_it_goes(
    trainer: Trainer, browser: Browser, researcher_browser: Client
) -> None:
    def sentence() -> str:
        return html_of(researcher_browser).split('id="sentence">')[1].split("<")[0]

    assert sentence() == "Training goes on; nobody is labeling"
    trainer.wait_for(1)
    assert sentence() == "Training waits for you: 1 answer"
    trainer.register(2)
    browser.answer(browser.lease(1)[0])
    cache.clear()
    assert sentence() == "1 labeler, 60 answers an hour, training waits for 1 answer"
    trainer.wait_for(None)
    assert sentence() == "1 labeler, 60 answers an hour, done in about 11.7 h"
    Experiment.objects.update(state="paused")
    assert sentence().startswith("Paused")
    trainer.put(state="finished")
    assert sentence() == "Finished after 1 answer"


def goodbye(trainer: Trainer) -> None:
    trainer.post(f"{trainer.path}/points", {"points": [], "waiting_for": None, "stopped": True})


def test_stopped_run_is_shown_until_it_reports_again(trainer: Trainer, researcher_browser: Client) -> None:
    trainer.register(2)
    report(trainer, time__seconds_left=2640)
    trainer.wait_for(1)
    running = html_of(researcher_browser)
    assert all(
        text in running for text in ('badge running">running', "44 min", '<a class="button" id="label"')
    )
    goodbye(trainer)
    stopped = html_of(researcher_browser)
    assert '<span class="badge">stopped' in stopped
    assert "The run was stopped on" in stopped
    assert "2 open questions can still be answered" in stopped
    assert '<a class="button quiet" id="label"' in stopped
    assert not any(text in stopped for text in ("44 min", 'badge running"', '<b class="number due">1'))
    assert trainer.experiment.waiting_for is None
    home = " ".join(researcher_browser.get("/").content.decode().split())
    assert '<span class="badge">stopped' in home
    trainer.post(
        f"{trainer.path}/cancel", {"comparisons": [str(each.uuid) for each in Comparison.objects.all()]}
    )
    again = html_of(researcher_browser)  # any request of the trainer
    assert 'badge running">running' in again
    assert 'id="away"' not in again
    goodbye(trainer)
    assert 'id="label"' not in html_of(researcher_browser)  # nothing is left to label
    trainer.put()
    assert trainer.experiment.trainer_left_at is None


def test_silent_run_is_stopped_after_three_minutes(trainer: Trainer, researcher_browser: Client) -> None:
    for seconds, badge in ((170, "running"), (190, "stopped")):
        Experiment.objects.update(trainer_seen_at=Now() - timedelta(seconds=seconds))
        assert f">{badge}</span>" in html_of(researcher_browser)
    assert "No contact with the trainer since" in html_of(researcher_browser)


def test_finished_run_stays_finished_after_its_goodbye(trainer: Trainer, researcher_browser: Client) -> None:
    trainer.put(state="finished")
    goodbye(trainer)
    assert '<span class="badge">finished' in html_of(researcher_browser)
