"""Requests that nobody thought of: no answer is a failure of the site, or one that its schema does not know.

They are drawn from the schema, some of them valid and some not, and are the same each time.
``FUZZ_EXAMPLES=300 pytest tests/site/test_fuzz.py`` draws so many of each kind, and others each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import schemathesis
from django.conf import settings as site
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)

from human_feedback_site.wsgi import application

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
