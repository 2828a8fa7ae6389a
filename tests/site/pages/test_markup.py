"""Test that every page is complete in both languages and obeys the content security policy."""

import ast
import gettext
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from uuid import uuid4

import pytest
from django.test import Client
from django.utils.translation.template import templatize

from human_feedback_site import feedback
from human_feedback_site.feedback.models import Comparison
from tests.site.conftest import Browser, Trainer

Pages = Callable[[str], Iterator[str]]
APP = Path(feedback.__file__).parent
CATALOG = APP / "locale/zh_Hans/LC_MESSAGES/django.mo"
PAIR = re.compile(r'^msgid "(.+)"\n(?:msgid_plural ".+"\n)?msgstr(?:\[0\])? "(.*)"$', re.MULTILINE)
CALL = re.compile(r"""\bn?gettext\(u?((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))|\b_\(((?:"[^"]+"|'[^']+'))""")


class Markup(HTMLParser):
    """Collects what a strict policy forbids, and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_data = given.get("type") == "application/json"
        if tag == "style" or (tag == "script" and "src" not in given and not is_data):
            self.inline.append(f"<{tag}>")
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        self.addresses += [given[name] or "" for name in ("href", "src", "action") if name in given]


@pytest.fixture
def pages(trainer: Trainer, browser: Browser, researcher_browser: Client) -> Pages:
    trainer.register(3)
    browser.answer(browser.lease()[0])
    points = [{"step": step, "values": {"predictor/loss": 0.5}} for step in (0, 10)]
    trainer.post(f"{trainer.path}/points", {"points": points, "waiting_for": 3})
    link = trainer.put(invite="leo")["invite_url"]

    pair = Comparison.objects.exclude(labels=None).get()
    browsed = [f"/experiments/hopper/comparisons{more}" for more in ("", f"/{pair.uuid}", "?state=cancelled")]
    labeler = f"/experiments/hopper/labelers/{pair.labels.get().labeler_id}"

    def pages(language: str) -> Iterator[str]:
        clients = {"researcher": researcher_browser, "labeler": browser.client, "nobody": Client()}
        addresses = {
            "researcher": ["/", "/experiments/hopper/", link, labeler, *browsed],
            "labeler": ["/", "/experiments/hopper/label"],
            "nobody": ["/accounts/login/", "/join/forged", "/nothing-here"],
        }
        for who, paths in addresses.items():
            for path in paths:
                response = clients[who].get(path, headers={"Accept-Language": language})
                yield response.content.decode()
        invited = researcher_browser.post(
            "/experiments/hopper/invite", {"labeler": "zoe"}, headers={"Accept-Language": language}
        )
        yield invited.content.decode()

    return pages


def test_pages_have_no_inline_scripts_or_foreign_urls(pages: Pages) -> None:
    for html in pages("en"):
        markup = Markup()
        markup.feed(html)
        assert not markup.inline
        assert markup.addresses
        assert [address for address in markup.addresses if not address.startswith(("/", "#", "?"))] == []


def test_chinese_pages_are_fully_translated(pages: Pages) -> None:
    for html in pages("zh-CN"):
        assert '<html lang="zh-hans">' in html
        visible = re.sub(r"<script.*?</script>|<[^>]+>", " ", html, flags=re.DOTALL)
        visible = visible.replace("Which hops higher?", "")
        assert re.findall(r"[A-Za-z’]+ [a-z’]+ [a-z’]+", visible) == []


def test_errors_for_labelers_are_translated(trainer: Trainer, browser: Browser) -> None:
    """The labeling page shows it."""
    trainer.register(1)
    label = browser.label(browser.lease()[0])
    undo = f"/labels/{label['uuid']}/undo"
    browser.client.defaults["HTTP_ACCEPT_LANGUAGE"] = "zh-CN"
    refusals = [browser.send("POST", undo, {"uuid": str(uuid4())})]
    browser.post("/labels", label)
    refusals.append(browser.send("POST", "/labels", {**label, "choice": "equal"}))
    refusals.append(browser.send("POST", "/labels", {**label, "lease": str(uuid4())}))
    browser.undo(label)
    refusals.append(browser.send("POST", undo, {"uuid": str(uuid4())}))
    assert [each.status_code for each in refusals] == [404, 409, 404, 409]
    for each in refusals:
        said = json.loads(each.content)["detail"]
        assert re.findall(r"[A-Za-z’]+ [a-z’]+", said) == []
        assert re.search(r"[\u4e00-\u9fff]", said)


def chinese() -> Callable[[str], str]:
    """The compiled catalog."""
    with CATALOG.open("rb") as file:
        catalog = gettext.GNUTranslations(file)

    def translated(text: str) -> str:
        found = catalog.gettext(text)
        return catalog.ngettext(text, text, 1) if found == text else found

    return translated


def test_every_message_is_translated() -> None:
    translated = chinese()
    texts = set(template_texts()) | set(python_texts())
    assert len(texts) > 130
    assert sorted(text for text in texts if translated(text) == text) == []


def test_compiled_catalog_matches_its_source() -> None:
    source = CATALOG.with_suffix(".po").read_text(encoding="utf-8")
    assert "fuzzy" not in source
    pairs = dict(PAIR.findall(source))
    translated = chinese()
    assert [text for text in pairs if not pairs[text] or translated(text) != pairs[text]] == []
    # Nothing is left of texts that are not shown any more.
    assert set(pairs) == set(template_texts()) | set(python_texts())


def template_texts() -> Iterator[str]:
    """Read templates as Django's makemessages does, without its tools; the admin's have Django's texts."""
    for path in set(APP.glob("templates/**/*.html")) - set(APP.glob("templates/admin/app_*.html")):
        for groups in CALL.findall(templatize(path.read_text(encoding="utf-8"))):
            yield str(ast.literal_eval("".join(groups)))


def python_texts() -> Iterator[str]:
    for path in (
        each for folder in ("pages", "models", "services", "queue") for each in APP.glob(f"{folder}/**/*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id not in {"_", "ngettext"}:
                    continue
                text = node.args[0]
                assert isinstance(text, ast.Constant)
                yield str(text.value)
