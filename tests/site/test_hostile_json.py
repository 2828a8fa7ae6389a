"""JSON that was written to do harm is a problem of the request, not of the site."""

import json

import pytest

from tests.site.conftest import Trainer


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"points": [], "x": "\\ud800"}', "surrogate"),
        ('{"points": [], "\\udfff": 1}', "surrogate"),
        ('{"points": [{"step": 1' + "0" * 9_000 + "}]}", "JSON parse error"),
    ],
    ids=["lists", "objects", "surrogate", "surrogate in a key", "long number"],
)
def test_it_is_refused_with_a_problem(trainer: Trainer, body: str, detail: str) -> None:
    response = trainer.client.post(f"/api/v1{trainer.path}/points", body, content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (400, "application/problem+json")
    assert detail in json.loads(response.content)["detail"]


def test_a_character_of_two_surrogates_is_kept(trainer: Trainer) -> None:
    body = json.dumps(trainer.description(prompt="Which one is a 🤸?"))
    assert "\\ud83e" in body
    assert trainer.put(prompt="Which one is a 🤸?")["prompt"] == "Which one is a 🤸?"


def test_pointers_escape_the_characters_that_separate_them(trainer: Trainer) -> None:
    points = [{"step": 1, "values": {"a/b~c": "x"}}]
    response = trainer.send("POST", f"{trainer.path}/points", {"points": points})
    [error] = json.loads(response.content)["errors"]
    assert error["pointer"] == "#/points/0/values/a~1b~0c"
