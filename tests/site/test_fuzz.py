"""Requests that nobody thought of: no answer is a failure of the site, or one that its schema does not know.

They are drawn from the schema, some of them valid and some not, and are the same each time.
``FUZZ_EXAMPLES=300 pytest tests/site/test_fuzz.py`` draws so many of each kind, and others each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import schemathesis
from django.conf import settings as site
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
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
# The schema does not say all that is refused (a NUL in a text), and numbers may come as texts. Who may do
# what is in test_every_endpoint.py.
NOT_CHECKED = [negative_data_rejection, positive_data_acceptance, ignored_auth]
BODY, PATH = "requestBody", "parameters"
# What an answer tells, and where it is used: by operation and status, then by operation.
LINKS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("put_experiment", "200"): {"put_experiment": {BODY: "$request.body"}},
    ("list_comparisons", "200"): {
        "cancel_comparisons": {BODY: {"comparisons": ["$response.body#/items/0/uuid"]}},
    },
    ("lease_comparisons", "200"): {
        "create_label": {BODY: {"lease": "$response.body#/leases/0/uuid"}},
        "read_lease": {PATH: {"uuid": "$response.body#/leases/0/uuid"}},
        "lease_comparisons": {BODY: {"held": ["$response.body#/leases/0/uuid"]}},
    },
    ("create_label", "201"): {
        "undo_label": {PATH: {"uuid": "$response.body#/uuid"}},
        "create_label": {BODY: "$request.body"},
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
    return schema


@pytest.fixture
def credentials(trainer: Trainer, browser: Browser) -> Iterator[Credentials]:
    """Say with what a request is sent: as a labeler where only a session opens it, else with a token."""
    trainer.register(4)
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


def test_each_operation_answers_as_its_schema_says(schema: BaseSchema, credentials: Credentials) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) == 18
    for operation in operations:
        check(operation, credentials)


def check(operation: Operation, credentials: Credentials) -> None:
    place = {"name": "hopper"} if "{name}" in operation.path else {}

    @drawn(8)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from(GenerationMode))
        known = data.draw(st.sampled_from([place, place, {}]))
        case = data.draw(operation.as_strategy(mode, path_parameters=known))
        with transaction.atomic():
            case.call_and_validate(excluded_checks=NOT_CHECKED, **credentials(case))
            transaction.set_rollback(True)

    check()


def test_stories_of_requests_are_answered_as_their_schema_says(
    schema: BaseSchema, credentials: Credentials
) -> None:
    statuses = set()

    class Story(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            self.begun = transaction.atomic()
            self.begun.__enter__()

        def teardown(self) -> None:
            transaction.set_rollback(True)
            self.begun.__exit__(None, None, None)

        def before_call(self, case: Request) -> None:
            if "name" in case.path_parameters:
                case.path_parameters["name"] = "hopper"

        def get_call_kwargs(self, case: Request) -> dict[str, Any]:
            return credentials(case)

        def validate_response(self, response: Any, case: Request, **_: Any) -> None:
            case.validate_response(response, excluded_checks=NOT_CHECKED)
            statuses.add((case.operation.definition.raw["operationId"], response.status_code))

    run_state_machine_as_test(Story, settings=drawn(15))
    assert {("create_label", 201), ("lease_comparisons", 200)} <= statuses  # stories get on
