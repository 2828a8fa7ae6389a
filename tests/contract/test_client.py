"""Both sides keep to the story: the client sends its requests, and the site gives its responses."""

import contextlib
import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from human_feedback_site.feedback.queue import leases
from human_feedback_site.feedback.services.accounts import create_token
from teacher.errors import SiteRefusedError
from teacher.labeling.client import (
    ClipReference,
    ExperimentSettings,
    FeedbackClient,
    Point,
    Registration,
)
from teacher.labeling.explained import Predictions
from tests.servers import Handler, serving

Call = Callable[[FeedbackClient, Any], Any]
NAME = "hopper-flip"


class Site(HTTPServer):
    """Gives one prepared answer and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.answer: Any = None
        self.asked: tuple[str, str, str | None, Any] | None = None


class _Handler(Handler):
    def answer(self) -> None:
        site, body = self.server, self.body()
        site.asked = (
            self.command,
            self.path,
            self.headers["Authorization"],
            json.loads(body) if body else None,
        )
        self.reply(site.status, site.answer)

    do_GET = do_POST = do_PUT = answer  # noqa: N815


@pytest.fixture
def server() -> Iterator[Site]:
    site = Site()
    with serving(site):
        yield site


@pytest.fixture
def client(server: Site) -> Iterator[FeedbackClient]:
    with contextlib.closing(FeedbackClient(f"http://127.0.0.1:{server.server_port}/", "tt_token")) as client:
        yield client


def settings_of(body: Any) -> ExperimentSettings:
    fields = {name: value for name, value in body.items() if name not in ("run_id", "state")}
    return ExperimentSettings(name=NAME, run_id=UUID(body["run_id"]), **fields)


def put(client: FeedbackClient, body: Any) -> Any:
    return client.put_experiment(settings_of(body), state=body.get("state"))


def register(client: FeedbackClient, body: Any) -> Any:
    comparisons = [
        Registration(
            **{name: value for name, value in item.items() if name not in {"first", "second"}}
            | {"uuid": UUID(item["uuid"]), "items": tuple(map(_clip, item.get("items") or _sides(item)))}
        )
        for item in body["comparisons"]
    ]
    return client.register(NAME, comparisons)


def _sides(item: Any) -> Any:
    return item["first"], item["second"]


def _clip(item: Any) -> ClipReference:
    return ClipReference(**item)


def post_points(client: FeedbackClient, body: Any) -> Any:
    points = [Point(**point) for point in body["points"]]
    predicted = None
    if told := body.get("predicted"):
        films = {each["step"]: each["rewards"] for each in told["films"]}
        questions = {UUID(each["uuid"]): each["items"] for each in told["comparisons"]}
        predicted = Predictions(told["step"], films, questions)
    return {"stored": client.post_points(NAME, points, body["waiting_for"], predicted)}


def say_goodbye(client: FeedbackClient, body: Any) -> Any:
    client.say_goodbye(NAME, [Point(**point) for point in body["points"]])
    return {"stored": len(body["points"])}


def cancel(client: FeedbackClient, body: Any) -> Any:
    return {"cancelled": client.cancel(NAME, [UUID(uuid) for uuid in body["comparisons"]])}


def read_feed(after: int, name: str = NAME) -> Call:
    return lambda client, _: client.decisions(name, after)


CALLS: dict[str, Call] = {
    "01-create-experiment": put,
    "02-resume-experiment": put,
    "03-refuse-the-name-of-another-run": put,
    "05-refuse-a-bad-body": put,
    "06-register": register,
    "07-register-again": register,
    "08-refuse-changed-content": register,
    "09-refuse-unreadable-clips": register,
    "10-read-an-empty-feed": read_feed(0),
    "11-tell-what-training-waits-for": post_points,
    "18-read-a-decision": read_feed(0),
    "20-read-no-decision-any-more": read_feed(1),
    "22-read-cant-tell": read_feed(2),
    "23-cancel": cancel,
    "25-stop-waiting": post_points,
    "25a-other-kinds-register": register,
    "25d-read-a-rating": read_feed(3),
    "26-finish": put,
    "28-miss-an-experiment": read_feed(0, "nobodys"),
    "29-gold-register": register,
    "30-say-goodbye": say_goodbye,
}
OF_SCRIPTED_LABELERS = {"12-invite-a-labeler", "14-ask-for-the-truth-of-a-lease"}
LIST = "24-list-comparisons"


def test_every_request_of_a_trainer_is_covered(story: list[Any]) -> None:
    of_trainers = {exchange.name for exchange in story if exchange.who == "trainer"}
    assert of_trainers == CALLS.keys() | OF_SCRIPTED_LABELERS | {LIST}


def test_the_client_reads_the_status_of_every_comparison_in_the_list(
    story: list[Any], server: Site, client: FeedbackClient
) -> None:
    exchange = next(exchange for exchange in story if exchange.name == LIST)
    server.answer = {"items": [{**item, "id": index} for index, item in enumerate(exchange.answer["items"])]}
    expected = {UUID(item["uuid"]): item["status"] for item in exchange.answer["items"]}
    assert client.statuses(NAME) == expected
    assert server.asked == ("GET", exchange.path, "Bearer tt_token", None)


@pytest.mark.parametrize("name", CALLS)
def test_the_client_keeps_the_contract(
    name: str, story: list[Any], server: Site, client: FeedbackClient
) -> None:
    exchange = next(exchange for exchange in story if exchange.name == name)
    answer = json.loads(json.dumps(exchange.answer).replace('"<a labeler>"', "7"))
    server.status, server.answer = exchange.status, answer
    if exchange.status < 300:
        assert as_json(CALLS[name](client, exchange.body)) == answer
    else:
        with pytest.raises(SiteRefusedError) as refusal:
            CALLS[name](client, exchange.body)
        assert refusal.value.status == exchange.status
    assert server.asked == (exchange.method, exchange.path, "Bearer tt_token", exchange.body)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gold_rate": 0.05}, {"gold_rate": 0.05}),
        ({"lowest_rating": "falls", "feedback": "rating"}, {"lowest_rating": "falls"}),
    ],
    ids=["rate of gold", "words beside ratings"],
)
def test_optional_settings_are_sent_if_there_are_any(
    changes: dict[str, Any], told: dict[str, Any], story: list[Any], server: Site, client: FeedbackClient
) -> None:
    exchange = next(exchange for exchange in story if exchange.name == "01-create-experiment")
    server.answer = exchange.answer
    client.put_experiment(dataclasses.replace(settings_of(exchange.body), **changes))
    assert server.asked is not None
    assert server.asked[3] == {**exchange.body, **told}


@pytest.mark.parametrize(
    ("told", "kinds"),
    [({}, {"pair"}), ({"kinds": ["pair", "rating"]}, {"pair", "rating"})],
    ids=["0.1.0", "later"],
)
def test_a_site_tells_which_kinds_of_questions_it_knows(
    told: dict[str, Any], kinds: set[str], server: Site, client: FeedbackClient
) -> None:
    server.answer = {"status": "ready", "instance": "", **told}
    assert client.kinds() == kinds


def as_json(result: Any) -> Any:
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    return json.loads(json.dumps(result, default=str))


class FirstIsLeft(random.Random):
    """Draws no swap, so that the story has one ending."""

    def getrandbits(self, k: int, /) -> int:
        return 0


@pytest.fixture
def clients(db: None) -> dict[str, Client]:
    token = create_token(User.objects.create(username="ada", is_staff=True))
    return {
        "trainer": Client(headers={"Authorization": f"Bearer {token}"}),
        "stranger": Client(headers={"Authorization": "Bearer tt_wrong"}),
        "labeler": Client(),
    }


@pytest.mark.both_databases
def test_the_site_keeps_the_contract(
    story: list[Any],
    names: Any,
    clients: dict[str, Client],
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TEACHER_STORAGE = str(tmp_path)
    monkeypatch.setattr(leases, "_random", FirstIsLeft())
    for exchange in story:
        if exchange.name.endswith("-register"):
            _upload(tmp_path, exchange.body)
        data = "" if exchange.body is None else json.dumps(names.fill(exchange.body))
        response: Any = clients[exchange.who].generic(
            exchange.method, names.fill(exchange.path), data, content_type="application/json"
        )
        body = json.loads(response.content)
        assert response.status_code == exchange.status, (exchange.name, body)
        kind = "application/json" if response.status_code < 400 else "application/problem+json"
        assert response["Content-Type"] == kind, exchange.name
        assert names.matches(exchange.answer, body), (exchange.name, exchange.answer, body)
        if "invite_url" in body and exchange.name.endswith("-invite-a-labeler"):
            assert clients["labeler"].get(body["invite_url"]).status_code == 302


def _upload(folder: Path, body: Any) -> None:
    for comparison in body["comparisons"]:
        for clip in comparison.get("items") or _sides(comparison):
            path = folder / clip["key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a clip")
