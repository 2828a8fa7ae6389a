"""The client sends the story's requests and understands its responses."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from http.server import HTTPServer
from typing import Any
from uuid import UUID

import pytest

from teacher.errors import SiteRefusedError
from teacher.labeling.client import (
    ClipReference,
    ExperimentSettings,
    FeedbackClient,
    Point,
    Registration,
)
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


def settings_of(body: Any) -> ExperimentSettings:
    fields = {name: value for name, value in body.items() if name not in ("run_id", "state")}
    return ExperimentSettings(name=NAME, run_id=UUID(body["run_id"]), **fields)


def put(client: FeedbackClient, body: Any) -> Any:
    return client.put_experiment(settings_of(body), state=body.get("state"))


def register(client: FeedbackClient, body: Any) -> Any:
    comparisons = [
        Registration(
            **{
                **item,
                "uuid": UUID(item["uuid"]),
                "first": ClipReference(**item["first"]),
                "second": ClipReference(**item["second"]),
            }
        )
        for item in body["comparisons"]
    ]
    return client.register(NAME, comparisons)


def post_points(client: FeedbackClient, body: Any) -> Any:
    points = [Point(**point) for point in body["points"]]
    return {"stored": client.post_points(NAME, points, body["waiting_for"])}


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


def test_the_client_reads_the_status_of_every_comparison_in_the_list(story: list[Any], server: Site) -> None:
    exchange = next(exchange for exchange in story if exchange.name == LIST)
    server.answer = {"items": [{**item, "id": index} for index, item in enumerate(exchange.answer["items"])]}
    with contextlib.closing(FeedbackClient(f"http://127.0.0.1:{server.server_port}", "tt_token")) as client:
        assert client.statuses(NAME) == {
            UUID(item["uuid"]): item["status"] for item in exchange.answer["items"]
        }
    assert server.asked == ("GET", exchange.path, "Bearer tt_token", None)


@pytest.mark.parametrize("name", CALLS)
def test_the_client_keeps_the_contract(name: str, story: list[Any], server: Site) -> None:
    exchange = next(exchange for exchange in story if exchange.name == name)
    server.status, server.answer = exchange.status, exchange.answer
    client = FeedbackClient(f"http://127.0.0.1:{server.server_port}/", "tt_token")
    with contextlib.closing(client):
        if exchange.status < 300:
            assert as_json(CALLS[name](client, exchange.body)) == exchange.answer
        else:
            with pytest.raises(SiteRefusedError) as refusal:
                CALLS[name](client, exchange.body)
            assert refusal.value.status == exchange.status
    assert server.asked == (exchange.method, exchange.path, "Bearer tt_token", exchange.body)


def test_a_rate_of_gold_is_told_where_there_is_one(story: list[Any], server: Site) -> None:
    exchange = next(exchange for exchange in story if exchange.name == "01-create-experiment")
    server.answer = exchange.answer
    settings = dataclasses.replace(settings_of(exchange.body), gold_rate=0.05)
    with contextlib.closing(FeedbackClient(f"http://127.0.0.1:{server.server_port}/", "tt_token")) as client:
        client.put_experiment(settings)
    assert server.asked is not None
    assert server.asked[3] == {**exchange.body, "gold_rate": 0.05}


def as_json(result: Any) -> Any:
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    return json.loads(json.dumps(result, default=str))
