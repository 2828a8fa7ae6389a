"""Two admins at one form: the second is told what the first has changed, and writes over nothing."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from human_feedback_site.feedback import models
from tests.site.conftest import Browser, Trainer

Form = dict[str, Any]
Make = Callable[[Trainer], Any]


class Fields(HTMLParser):
    """Collects what a browser sends from the forms of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._name = ""
        self._is_text = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a field, or an option that is chosen."""
        given = {name: value or "" for name, value in attrs}
        if tag in {"textarea", "select"}:
            self._name, self._is_text = given["name"], tag == "textarea"
            if self._is_text:
                self.values[self._name] = [""]
        elif tag == "option" and "selected" in given:
            self.values.setdefault(self._name, []).append(given["value"])
        elif tag == "input" and "name" in given:
            is_box = given.get("type") == "checkbox"
            if given.get("type") != "submit" and (not is_box or "checked" in given):
                value = given.get("value", "on" if is_box else "")
                self.values.setdefault(given["name"], []).append(value)

    def handle_data(self, data: str) -> None:
        if self._is_text:
            self.values[self._name] = [self.values[self._name][0] + data.removeprefix("\n")]

    def handle_endtag(self, tag: str) -> None:
        self._is_text = self._is_text and tag != "textarea"


@pytest.fixture
def admins(db: None) -> tuple[Client, Client]:
    clients = Client(), Client()
    for name, client in zip(("root", "toor"), clients, strict=True):
        client.force_login(User.objects.create(username=name, is_staff=True, is_superuser=True))
    return clients


def address(row: Any) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def open_form(client: Client, row: Any) -> Form:
    fields = Fields()
    html = client.get(address(row)).content.decode()
    fields.feed(html[html.index('<div id="content-main">') :])
    return {name: values for name, values in fields.values.items() if not name.startswith("_")}


def experiment(trainer: Trainer) -> models.Experiment:
    return trainer.experiment


def example(trainer: Trainer) -> models.Example:
    trainer.register(1)
    pair = models.Comparison.objects.get()
    return models.Example.objects.create(experiment=trainer.experiment, comparison=pair, better="first")


def account(trainer: Trainer) -> User:
    return trainer.user


@pytest.mark.parametrize(
    ("make", "field", "first", "second"),
    [
        (experiment, "prompt", "Which is faster?", "Which is slower?"),
        (experiment, "overlap", "2", "3"),
        (experiment, "overlap_share", "0.5", "0.25"),
        (experiment, "aggregation", "majority", "dawid_skene"),
        (example, "explanation", "It lands.", "It falls."),
        (example, "better", "second", "equal"),
        (account, "email", "a@example.org", "b@example.org"),
    ],
)
def test_the_second_is_told_what_the_field_holds_now(
    admins: tuple[Client, Client], trainer: Trainer, make: Make, field: str, first: str, second: str
) -> None:
    row = make(trainer)
    forms = [open_form(client, row) for client in admins]
    assert admins[0].post(address(row), {**forms[0], field: first}).status_code == 302
    refused = admins[1].post(address(row), {**forms[1], field: second})
    assert refused.status_code == 200
    said = f"Someone else changed this to “{first}” after you opened the page. Nothing was saved"
    assert said in refused.content.decode()
    assert str(getattr(type(row).objects.get(pk=row.pk), field)) == first
    again = open_form(admins[1], row)
    assert admins[1].post(address(row), {**again, field: second}).status_code == 302
    assert str(getattr(type(row).objects.get(pk=row.pk), field)) == second


def test_other_fields_of_the_form_are_saved(admins: tuple[Client, Client], trainer: Trainer) -> None:
    for row, one, two in (
        (experiment(trainer), ("overlap", "2"), ("min_watch_ms", "300")),
        (example(trainer), ("explanation", "It lands."), ("better", "second")),
        (account(trainer), ("first_name", "Ada"), ("last_name", "Lovelace")),
    ):
        forms = [open_form(client, row) for client in admins]
        for client, form, (field, value) in zip(admins, forms, (one, two), strict=True):
            assert client.post(address(row), {**form, field: value}).status_code == 302
        now = type(row).objects.get(pk=row.pk)
        assert [str(getattr(now, field)) for field, _ in (one, two)] == [one[1], two[1]]


def test_the_same_change_by_both_is_no_conflict(admins: tuple[Client, Client], trainer: Trainer) -> None:
    row = experiment(trainer)
    forms = [open_form(client, row) for client in admins]
    for client, form in zip(admins, forms, strict=True):
        assert client.post(address(row), {**form, "overlap": "2"}).status_code == 302
    assert trainer.experiment.overlap == 2


def test_a_time_is_compared_as_the_form_shows_it(admins: tuple[Client, Client], trainer: Trainer) -> None:
    row = account(trainer)
    assert row.date_joined.microsecond
    forms = [open_form(client, row) for client in admins]
    assert admins[0].post(address(row), {**forms[0], "date_joined_0": "2020-01-31"}).status_code == 302
    assert User.objects.get(pk=row.pk).date_joined.year == 2020
    refused = admins[1].post(address(row), {**forms[1], "date_joined_0": "2021-01-31"})
    assert "Someone else changed this to “2020-01-31" in refused.content.decode()


def test_a_box_that_was_ticked_meanwhile_is_told(admins: tuple[Client, Client], trainer: Trainer) -> None:
    row = account(trainer)
    User.objects.filter(pk=row.pk).update(is_superuser=True)
    forms = [open_form(client, row) for client in admins]
    for form in forms:
        del form["is_superuser"]
    assert admins[0].post(address(row), forms[0]).status_code == 302
    assert not User.objects.get(pk=row.pk).is_superuser
    assert admins[1].post(address(row), forms[1]).status_code == 302  # the same change


def test_lists_are_compared_and_those_that_were_not_touched_stay(
    admins: tuple[Client, Client], trainer: Trainer, stranger: Trainer, browser: Browser
) -> None:
    labeler = models.Labeler.objects.get(name="you", experiments=trainer.experiment)
    hopper, walker = trainer.experiment.pk, stranger.experiment.pk
    forms = [open_form(client, labeler) for client in admins]
    more = {**forms[0], "experiments": [hopper, walker]}
    assert admins[0].post(address(labeler), more).status_code == 302
    refused = admins[1].post(address(labeler), {**forms[1], "experiments": []})
    [said] = re.findall("Someone else changed this to “([^”]+)”", refused.content.decode())
    assert sorted(said.split(", ")) == ["hopper", "walker"]
    assert set(labeler.experiments.values_list("pk", flat=True)) == {hopper, walker}

    groups = [Group.objects.create(name=name) for name in ("one", "two")]
    forms = [open_form(client, trainer.user) for client in admins]
    changed = {**forms[0], "groups": [groups[0].pk]}
    assert admins[0].post(address(trainer.user), changed).status_code == 302
    emptied = admins[1].post(address(trainer.user), {**forms[1], "groups": [groups[1].pk]})
    assert "Someone else changed this to “one”" in emptied.content.decode()
    untouched = {**forms[1], "email": "a@example.org"}
    assert admins[1].post(address(trainer.user), untouched).status_code == 302
    assert [each.name for each in trainer.user.groups.all()] == ["one"]


# The consent text and the prompt, on the experiment's own pages


def test_a_consent_text_that_was_changed_meanwhile_is_not_overwritten(trainer: Trainer) -> None:
    mine, path = Client(), f"/experiments/{trainer.name}/consent/text"
    mine.force_login(trainer.user)

    def version() -> str:
        [found] = re.findall(
            r'consent/text">.*?name="version" value="(\w*)"',
            mine.get(f"/experiments/{trainer.name}/settings").content.decode(),
            re.DOTALL,
        )
        return str(found)

    empty = version()
    assert empty == ""
    assert mine.post(path, {"text": "First.", "version": empty}).status_code == 302
    first = version()
    for stale in (empty, "0" * 64):
        refused = mine.post(path, {"text": "Second.", "version": stale})
        assert refused.status_code == 409
        assert "Someone else changed the consent text" in refused.content.decode()
    assert mine.post(path, {"text": "Second.", "version": first}).status_code == 302
    assert trainer.experiment.consent is not None
    assert trainer.experiment.consent.text == "Second."


# Searching by how a UUID begins


@pytest.mark.both_databases
@pytest.mark.parametrize("shown", ["{:.8}", "{:.13}", "{}"])
def test_the_admin_finds_rows_by_how_the_uuid_of_a_comparison_begins(
    admins: tuple[Client, Client], trainer: Trainer, browser: Browser, shown: str
) -> None:
    trainer.register(2)
    browser.undo(browser.answer(browser.lease()[0]))
    browser.answer(browser.lease()[0])
    pair = models.Label.objects.latest("pk").comparison
    for model in (models.Comparison, models.Label, models.Lease, models.Decision):
        begins = shown.format(str(pair.uuid))
        path = reverse(f"admin:feedback_{model._meta.model_name}_changelist")
        for term in (begins, begins.upper(), f" {begins} "):
            response: Any = admins[0].get(path, {"q": term})
            found = {getattr(each, "comparison_id", each.pk) for each in response.context["cl"].result_list}
            assert found == {pair.pk}, (model, term)


def test_other_searches_of_the_admin_go_on(admins: tuple[Client, Client], trainer: Trainer) -> None:
    trainer.register(2)
    path = reverse("admin:feedback_comparison_changelist")
    for term, count in (("hopper", 2), ("walker", 0), ("ffffffff-ffff", 0), ("-", 2), ("x" * 50, 0)):
        response: Any = admins[0].get(path, {"q": term})
        assert response.context["cl"].result_count == count, term
