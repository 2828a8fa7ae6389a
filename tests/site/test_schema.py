"""The API describes itself with true examples, and what every answer carries, in headers and problems."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from human_feedback_site.feedback.api import researcher_views, serializers
from human_feedback_site.feedback.api.examples import REQUESTS, RESPONSES
from tests.site.conftest import Trainer, assert_guarded

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
def schema() -> Any:
    return json.loads(
        Client().get("/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"}).content
    )


def test_the_schema_is_valid_and_complete(tmp_path: Path) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yaml"))
    assert (tmp_path / "schema.yaml").stat().st_size > 10_000


def test_every_endpoint_has_examples_and_names_its_errors(schema: Any) -> None:
    operations = [
        operation
        for path in schema["paths"].values()
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


def test_the_written_documentation_names_every_endpoint(schema: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for path, operations in schema["paths"].items():
        address = path.removeprefix("/api/v1/").removeprefix("experiments/{name}")
        for method in operations:
            row = rf"`{method.upper()}( (experiments/{{name}})?{re.escape(address)}[`?]|`)"
            assert re.search(row, text), (method, path)


def test_every_path_says_in_a_sentence_what_it_does(schema: Any) -> None:
    said = {
        (path, method): about["summary"]
        for path, methods in schema["paths"].items()
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
