"""Requests that nobody thought of get only answers of the schema, which describes the API truly.

They are drawn from the schema, some of them valid and some not, and are the same each time.
``FUZZ_EXAMPLES=300 pytest tests/site/test_fuzz.py`` draws so many of each kind, and others each time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import schemathesis
from django.conf import settings as site
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from pytest_django import Settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)

from human_feedback_site.feedback.api import researcher_views, serializers
from human_feedback_site.feedback.api.examples import REQUESTS, RESPONSES
from human_feedback_site.wsgi import application
from tests.site.conftest import Trainer, assert_guarded

if TYPE_CHECKING:
    from schemathesis import APIOperation, BaseSchema, Case

    from tests.site.conftest import Browser, Trainer

    Request: TypeAlias = Case[Any]
    Operation: TypeAlias = APIOperation[Any, Any, Any, Any]
    Credentials: TypeAlias = Callable[[Request], dict[str, Any]]

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
STEPS = 6  # of a story
ROUNDS = 20  # of stories at most: they end when every link has led to a success, mostly after two to four
# The schema does not say all that is refused (a NUL in a text), and numbers may come as texts. Who may do
# what is in test_every_endpoint.py.
NOT_CHECKED = [negative_data_rejection, positive_data_acceptance, ignored_auth]
BODY, PATH = "requestBody", "parameters"
# What an answer tells, and where it is used: by operation and status, then by operation. Stories begin only
# with a POST, or with a GET that has no path parameter (schemathesis looks at no other root where there is
# one of these), so all else has to follow from one.
LINKS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("create_invite", "200"): {"put_experiment": {BODY: {"invite": "$request.body#/labeler"}}},
    ("put_experiment", "200"): {"put_experiment": {BODY: "$request.body"}},
    ("register_comparisons", "200"): {
        "register_comparisons": {BODY: "$request.body"},
        "cancel_comparisons": {BODY: {"comparisons": ["$request.body#/comparisons/0/uuid"]}},
        "list_comparisons": {},
    },
    ("add_episode", "200"): {"read_progress": {}},
    ("lease_comparisons", "200"): {
        "create_label": {BODY: {"lease": "$response.body#/leases/0/uuid"}},
        "read_lease": {PATH: {"uuid": "$response.body#/leases/0/uuid"}},
        "lease_comparisons": {BODY: {"held": ["$response.body#/leases/0/uuid"]}},
    },
    ("create_label", "201"): {
        "undo_label": {PATH: {"uuid": "$response.body#/uuid"}},
        "create_label": {BODY: "$request.body"},
        "list_decisions": {},
    },
    ("undo_label", "201"): {
        "create_label": {BODY: {"lease": "$response.body#/lease/uuid"}},
        "undo_label": {PATH: {"uuid": "$request.path.uuid"}},
    },
}


@pytest.fixture
def schema(client: Client) -> BaseSchema:
    """The schema of the API, in which answers are linked to the requests that they make possible."""
    described = client.get("/api/schema/?format=json").json()
    each = (operation for path in described["paths"].values() for operation in path.values())
    operations = {operation["operationId"]: operation for operation in each}
    for (source, status), targets in LINKS.items():
        links = {target: {"operationId": target, **link} for target, link in targets.items()}
        operations[source]["responses"][status]["links"] = links
    schema = schemathesis.openapi.from_dict(described)
    schema.app = application
    schema.config.generation.update(with_security_parameters=False)
    schema.config.phases.stateful.inference.algorithms = []  # the links above are all there are
    return schema


@dataclass(frozen=True)
class Existing:
    """Return values that no random request would contain.

    Attributes:
        names: by the names that it has in paths and bodies.
        lease: of the labeler, not answered.
        label: of the labeler.
    """

    names: dict[str, str]
    lease: str
    label: str

    def put_into(self, case: Request, *, linked: bool = False) -> None:
        """Let a request be about this; a lease or label that it is linked to stays."""
        path, body = self.names, self.names
        if not linked:
            path = path | {"uuid": self.lease if id_of(case.operation) == "read_lease" else self.label}
            body = body | {"lease": self.lease}
        case.path_parameters = naming(case.path_parameters, path)
        case.body = naming(case.body, body)


@pytest.fixture
def existing(trainer: Trainer, browser: Browser) -> Existing:
    key = f"{trainer.name}/clip.mp4"
    trainer.upload(key)
    trainer.register(6)
    held, answered = browser.lease(2)
    names = {"name": trainer.name, "run_id": trainer.run_id, "key": key}
    return Existing(names, held["uuid"], browser.answer(answered)["uuid"])


@pytest.fixture
def credentials(trainer: Trainer, browser: Browser, existing: Existing) -> Iterator[Credentials]:
    """Say with what a request is sent: as a labeler where only a session opens it, else with a token."""
    token = trainer.client.defaults["HTTP_AUTHORIZATION"]
    browser.client.get("/experiments/hopper/label")
    cookies = {name: browser.client.cookies[name].value for name in (site.SESSION_COOKIE_NAME, "csrftoken")}
    session = {"headers": {"X-CSRFToken": cookies["csrftoken"]}, "cookies": cookies}

    def credentials(case: Request) -> dict[str, Any]:
        is_open_to_tokens = {"token": []} in case.operation.definition.raw["security"]
        return {"headers": {"Authorization": token}} if is_open_to_tokens else session

    signals = request_started, request_finished
    for signal in signals:  # the site would close the connection, and with it the test's transaction
        signal.disconnect(close_old_connections)
    yield credentials
    for signal in signals:
        signal.connect(close_old_connections)


def drawn(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=STEPS,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def naming(value: Any, existing: Mapping[str, str]) -> Any:
    """Return what is drawn, path parameters or a body, with these in the places of their names."""
    if isinstance(value, dict):
        return {name: existing.get(name) or naming(each, existing) for name, each in value.items()}
    return [naming(each, existing) for each in value] if isinstance(value, list) else value


def id_of(operation: Operation) -> str:
    return str(operation.definition.raw["operationId"])


@pytest.mark.both_databases
def test_operations_fit_the_schema(schema: BaseSchema, credentials: Credentials, existing: Existing) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 18
    statuses = {id_of(each): check(each, credentials, existing, list(GenerationMode)) for each in operations}
    # Of each at least one success is held against the schema.
    for each in operations:
        if min(statuses[id_of(each)]) >= 300:
            valid = check(each, credentials, existing, [GenerationMode.POSITIVE], examples=40)
            statuses[id_of(each)] |= valid
    assert [name for name, found in statuses.items() if min(found) >= 300] == []


def check(
    operation: Operation,
    credentials: Credentials,
    existing: Existing,
    modes: Sequence[GenerationMode],
    examples: int = 5,
) -> set[int]:
    """Send requests, two of three about what exists, and return the statuses of the answers."""
    statuses = set()

    @drawn(examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(data.draw(st.sampled_from(modes))))
        if data.draw(st.sampled_from([True, True, False])):
            existing.put_into(case)
        with transaction.atomic():
            response = case.call_and_validate(excluded_checks=NOT_CHECKED, **credentials(case))
            transaction.set_rollback(True)
        statuses.add(response.status_code)

    check()
    return statuses


@pytest.mark.slow
def test_stories_fit_the_schema(schema: BaseSchema, credentials: Credentials, existing: Existing) -> None:
    linked = {name for targets in LINKS.values() for name in targets}
    succeeded = set()

    class Story(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            self.begun = transaction.atomic()
            self.begun.__enter__()

        def teardown(self) -> None:
            transaction.set_rollback(True)
            self.begun.__exit__(None, None, None)

        def before_call(self, case: Request) -> None:
            existing.put_into(case, linked=self.recorder.cases[case.id].transition is not None)

        def get_call_kwargs(self, case: Request) -> dict[str, Any]:
            return credentials(case)

        def validate_response(self, response: Any, case: Request, **_: Any) -> None:
            case.validate_response(response, excluded_checks=NOT_CHECKED)
            if response.status_code < 300:
                succeeded.add(id_of(case.operation))

    for number in range(ROUNDS):
        # Derandomized, each round would be the same: it is known by its number instead.
        run_state_machine_as_test(Story if EXAMPLES else seed(number)(Story), settings=drawn(15))
        if linked <= succeeded:
            break
    assert linked - succeeded == set()  # stories get on


BODIES = {
    "experiment": serializers.ExperimentRequestSerializer,
    "comparisons": serializers.ComparisonsRequestSerializer,
    "cancel": serializers.CancelRequestSerializer,
    "points": serializers.PointsRequestSerializer,
    "invite": serializers.InviteRequestSerializer,
    "leases": serializers.LeasesRequestSerializer,
    "label": serializers.LabelRequestSerializer,
    "undo": serializers.UndoRequestSerializer,
    "episode": serializers.EpisodeRequestSerializer,
}
ANSWERS = {
    "experiment": serializers.ExperimentSerializer,
    "registered": serializers.RegisteredSerializer,
    "decisions": serializers.DecisionsSerializer,
    "cancelled": serializers.CancelledSerializer,
    "stored": serializers.StoredSerializer,
    "comparisons": serializers.ComparisonsSerializer,
    "invite": serializers.InviteSerializer,
    "lease": serializers.LeaseDetailSerializer,
    "leases": serializers.LeasesSerializer,
    "label": serializers.LabelSerializer,
    "undo": serializers.UndoSerializer,
    "examples": serializers.ExamplesSerializer,
    "progress": serializers.ProgressSerializer,
}


@pytest.fixture(scope="module")
def served_schema() -> Any:
    return json.loads(
        Client().get("/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"}).content
    )


def test_the_schema_is_valid_and_complete(tmp_path: Path) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yaml"))
    assert (tmp_path / "schema.yaml").stat().st_size > 10_000


def test_every_endpoint_has_examples_and_names_its_errors(served_schema: Any) -> None:
    operations = [
        operation
        for path in served_schema["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict)
    ]
    assert len(operations) == 18
    for operation in operations:
        bodies = [operation["requestBody"]] if "requestBody" in operation else []
        good = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        contents = [content for body in [*bodies, *good] for content in body["content"].values()]
        assert contents
        assert all(is_binary(content) or content["examples"] for content in contents)
        assert {"400", "401", "403", "404"} <= set(operation["responses"])
        assert operation["description"]
        assert operation["security"]


def is_binary(content: Any) -> bool:
    return bool(content["schema"].get("format") == "binary")


@pytest.mark.parametrize("name", REQUESTS)
def test_examples_of_requests_are_accepted(name: str) -> None:
    serializer = BODIES[name](data=REQUESTS[name])
    assert serializer.is_valid(), serializer.errors


@pytest.mark.parametrize("name", RESPONSES)
def test_examples_of_responses_have_exactly_the_fields_of_responses(name: str) -> None:
    assert_same_fields(ANSWERS[name](), RESPONSES[name])


def assert_same_fields(serializer: Any, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            assert_same_fields(serializer.child, item)
    elif isinstance(value, dict):
        assert set(value) == set(serializer.fields)
        for name, field in serializer.fields.items():
            assert_same_fields(field, value[name])
    elif value is not None:
        serializer.to_representation(value)


def test_a_real_answer_looks_like_its_example(trainer: Trainer) -> None:
    assert set(trainer.put()) == set(RESPONSES["experiment"])
    assert set(trainer.decisions()) == set(RESPONSES["decisions"])


def test_the_documentation_page_loads_from_this_site_alone(client: Client, db: None) -> None:
    page = client.get("/api/docs/").content.decode()
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) >= 4
    assert all(address.startswith("/") and not address.startswith("//") for address in addresses)
    for address in addresses:
        assert client.head(address, follow=True).status_code == 200  # the way back may ask to sign in
    assert not re.search(r"<style|\sstyle=|<script>|\son\w+=", page)  # nothing that the policy forbids


def test_the_written_documentation_names_every_endpoint(served_schema: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for path, operations in served_schema["paths"].items():
        address = path.removeprefix("/api/v1/").removeprefix("experiments/{name}")
        for method in operations:
            row = rf"`{method.upper()}( (experiments/{{name}})?{re.escape(address)}[`?]|`)"
            assert re.search(row, text), (method, path)


def test_every_path_says_in_a_sentence_what_it_does(served_schema: Any) -> None:
    said = {
        (path, method): about["summary"]
        for path, methods in served_schema["paths"].items()
        for method, about in methods.items()
    }
    assert len(said) == 18
    assert [at for at, summary in said.items() if not re.fullmatch(r"[A-Z][^`]{10,100}[^.`]", summary)] == []
    exports = {path for path, _ in said if path.endswith(".parquet")}  # say what those as CSV do
    assert len(set(said.values())) == len(said) - len(exports)
    assert said["/api/v1/labels", "post"] == (
        "Record the labeler's answer to a lease, even if the lease has expired"
    )


def test_the_page_leads_back_to_the_site() -> None:
    html = Client().get("/api/docs/").content.decode()
    assert '<a href="/">← RL-Teacher</a>' in html


@pytest.mark.parametrize(
    "path",
    ["/api/nothing", "/nothing", "/static/admin/css/base.css"],
)
def test_other_responses_have_security_headers(client: Client, db: None, path: str) -> None:
    response: Any = client.head(path)
    assert_guarded(response)


def test_static_files_are_served_without_being_collected(settings: Settings) -> None:
    settings.WHITENOISE_AUTOREFRESH = False
    response = Client().head("/static/admin/css/base.css")
    assert (response.status_code, response["Content-Type"]) == (200, 'text/css; charset="utf-8"')
    assert int(response["Content-Length"]) > 10_000


def test_the_site_says_that_it_is_alive(client: Client, settings: Settings) -> None:
    settings.INSTANCE_ID = "abc"
    response = client.get("/livez")
    assert (response.status_code, json.loads(response.content)) == (200, {"instance": "abc"})
    assert client.post("/livez").status_code == 405


def test_hosts_that_are_not_ours_are_refused_with_a_problem(settings: Settings) -> None:
    response: Any = Client().get("/api/v1/labels", headers={"Host": "evil.example"})
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert_guarded(response)


def test_failures_reveal_nothing(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(researcher_views, "decisions_after", fail)
    trainer.client.raise_request_exception = False
    response = trainer.send("GET", f"{trainer.path}/decisions")
    assert response.status_code == 500
    assert response["Content-Type"] == "application/problem+json"
    assert "secret" not in response.content.decode()


def test_unknown_addresses_are_problems_below_api_and_pages_elsewhere(client: Client, db: None) -> None:
    assert client.get("/api/v2/labels")["Content-Type"] == "application/problem+json"
    assert client.get("/nothing")["Content-Type"].startswith("text/html")
