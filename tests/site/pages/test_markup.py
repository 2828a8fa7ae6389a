"""Test that pages are complete in both languages, obey the policy, direct text, and write no address."""

import ast
import gettext
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, reverse
from django.utils.translation.template import templatize

import human_feedback_site
from human_feedback_site import feedback
from human_feedback_site.environment import OWN_ADDRESSES
from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import ModelAdmin
from human_feedback_site.feedback.kinds import ITEMS
from human_feedback_site.feedback.models import Comparison, Invite, Labeler, Participation
from human_feedback_site.feedback.pages import urls
from human_feedback_site.feedback.services import invites, moderation, wording
from human_feedback_site.feedback.templatetags.directions import isolated
from tests.site.conftest import Browser, Trainer, client_of, new_invite

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
        each
        for folder in ("kinds", "pages", "models", "services", "queue")
        for each in (APP / "forms.py", *APP.glob(f"{folder}/**/*.py"))
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id not in {"_", "ngettext"}:
                    continue
                text = node.args[0]
                assert isinstance(text, ast.Constant)
                yield str(text.value)


VOID = {"area", "base", "br", "circle", "col", "embed", "hr", "img", "input", "line", "link", "meta", "path"}
RIGHT_TO_LEFT = re.compile("[\u0590-\u06ff]")
ISOLATE = re.compile("\u2068[^\u2068\u2069]*\u2069")
USERNAME_END = re.compile(r"-[0-9a-f]{8}$")  # of a labeler's, after its name
SEEN_ATTRIBUTES = ("title", "alt", "aria-label", "placeholder", "value")
# One text for each place where somebody writes; none begins with a Latin letter.
RESEARCHER, LABELER, SECOND = "عادة.Ada", "ליאו.leo", "דנה.dana"
PROMPT, OLD_PROMPT = "أيهما يقفز higher مرة؟", "من يركض Hopper أسرع؟"
ENV, NOTE, CODE = "بيئة-v1", "דור batch 1", "קוד-C0DE"
CONSENT, EXPLANATION, TOKEN = "أوافق on this.", "لأنه lands على قدميه", "אסימון token"
WRITTEN = {RESEARCHER, LABELER, SECOND, PROMPT, OLD_PROMPT, ENV, NOTE, CODE, CONSENT, EXPLANATION, TOKEN}
ONLY_POSTED = {
    *("use-as-example", "remove-example", "change", "invite", "pause", "resume", "reopen", "prompt", "act"),
    *("block", "readmit", "revoke", "consent-text", "forget", "logout", "set_language"),
}
NO_PAGES = {"export", "long-join", "session", "answer-clip", "left-clip", "right-clip", "episode"} | {
    f"{item}-clip" for item in ITEMS
}


class Written(HTMLParser):
    """Finds what people wrote, and where it could change the order of what stands around it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.wrong: list[str] = []
        self._open: list[tuple[str, bool, list[str]]] = []  # tag, has a direction of its own, texts inside

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at what an element shows of its attributes."""
        given = dict(attrs)
        is_own = tag == "bdi" or given.get("dir") == "auto"
        for name in SEEN_ATTRIBUTES:
            text = given.get(name) or ""
            if RIGHT_TO_LEFT.search(ISOLATE.sub("", text)) and given.get("type") != "hidden" and not is_own:
                self.wrong.append(f"<{tag} {name}={text!r}>")
            self._note(text)
        if tag not in VOID:
            self._open.append((tag, is_own, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        """Look at a text: isolated by characters, or within an element that has its own direction."""
        for _tag, _is_own, texts in self._open:
            texts.append(data)
        if self._open and self._open[-1][0] == "script":
            return
        self._note(data)
        if RIGHT_TO_LEFT.search(ISOLATE.sub("", data)) and not any(is_own for _, is_own, _ in self._open):
            self.wrong.append(f"<{self._open[-1][0]}> {data.strip()!r}")

    def handle_endtag(self, tag: str) -> None:
        """See that an element with its own direction holds one text alone: its first letter decides."""
        while self._open:
            opened, is_own, texts = self._open.pop()
            text = "".join(texts).strip()
            if is_own and RIGHT_TO_LEFT.search(text) and USERNAME_END.sub("", text) not in WRITTEN:
                self.wrong.append(f"<{opened}> holds more than one text: {text!r}")
            if opened == tag:
                return

    def _note(self, text: str) -> None:
        self.found |= {each for each in WRITTEN if each in text}


def test_checker_finds_missing_isolation() -> None:
    for html, wrong in (
        (f"<p>{PROMPT}</p>", 1),
        (f"<p>Which: {PROMPT}</p>", 1),
        (f'<p dir="auto">Which: {PROMPT}</p>', 1),
        (f'<img><input value="{PROMPT}">', 1),
        (f'<textarea name="x">{PROMPT}</textarea>', 1),
        (f'<p dir="auto">{PROMPT}</p><p>Which: <bdi>{PROMPT}</bdi></p><br><p>{isolated(PROMPT)}</p>', 0),
        (f'<div dir="auto"><p>{PROMPT}</p></div><input dir="auto" value="{PROMPT}">', 0),
    ):
        walker = Written()
        walker.feed(html)
        assert len(walker.wrong) == wrong, html
        assert walker.found == {PROMPT}


@pytest.fixture
def experiment(trainer: Trainer) -> models.Experiment:
    """One where everything that people can write is right to left."""
    User.objects.filter(pk=trainer.user.pk).update(username=RESEARCHER, is_superuser=True)
    trainer.user.refresh_from_db()
    trainer.put(prompt=OLD_PROMPT, env_id=ENV)
    wording.edit_prompt(trainer.experiment, PROMPT, trainer.user, seen=trainer.experiment.prompt_version)
    models.ApiToken.objects.update(name=TOKEN)
    return trainer.experiment


def test_every_page_isolates_user_text(experiment: models.Experiment, trainer: Trainer) -> None:
    shown, walker = set(), Written()
    for client, path in walk(experiment, trainer, client_of(trainer.user)):
        response: Any = client.get(path)
        assert response.status_code == 200, path
        walker.feed(response.content.decode())
        assert walker.wrong == [], path
        shown.add(response.resolver_match.url_name)
    named = {each.name for each in urls.urlpatterns if isinstance(each, URLPattern)}
    assert shown == named - ONLY_POSTED - NO_PAGES
    assert walker.found == WRITTEN - {TOKEN}


def walk(experiment: models.Experiment, trainer: Trainer, researcher: Client) -> Iterator[tuple[Client, str]]:
    """Yield each page with who sees it, as an experiment goes on."""
    anonymous = make_invite(experiment)
    yield researcher, invites.link_of(anonymous, "")  # somebody is signed in, and would be no more
    home = f"/experiments/{experiment.name}/"
    trainer.register(3)
    browser = Browser(trainer.invite(LABELER), trainer.name)
    link = trainer.invite(SECOND)
    yield browser.client, link
    for lease in browser.lease(2):
        browser.answer(lease)
    pairs = list(Comparison.objects.exclude(labels=None))
    lesson = {"better": "first", "explanation": EXPLANATION}
    assert researcher.post(f"{home}examples/{pairs[0].uuid}", lesson).status_code == 302
    places = ("", "live", "invites", "participants", "finish", "comparisons", "review", "settings")
    for page in places:
        yield researcher, home + page
    yield researcher, f"{home}comparisons/{pairs[0].uuid}"
    for page in ("label", "history", "done"):
        yield browser.client, home + page
    yield researcher, "/"
    yield browser.client, "/"
    wording.set_text(experiment, CONSENT)
    yield browser.client, f"{home}consent"
    labeler = Labeler.objects.get(name=LABELER)
    yield researcher, f"{home}labelers/{labeler.pk}"
    moderation.block(Participation.objects.filter(labeler=labeler), trainer.user)
    yield researcher, f"{home}labelers/{labeler.pk}"
    yield researcher, f"{home}comparisons/{pairs[1].uuid}"
    path = invites.link_of(make_invite(experiment, kind="named", labeler=labeler), "")
    stopped = Client()
    yield stopped, path
    assert stopped.post(path).status_code == 302
    yield stopped, f"{home}done"
    yield Client(), "/accounts/login/"


def make_invite(experiment: models.Experiment, **changes: Any) -> Invite:
    return new_invite(experiment, **{"note": NOTE, "limit": 3, "screen_out_code": CODE, **changes})


def test_form_responses_isolate_user_text(experiment: models.Experiment, trainer: Trainer) -> None:
    researcher, home = client_of(trainer.user), f"/experiments/{experiment.name}/"
    for path, form in (
        (f"{home}invite", {"labeler": LABELER}),
        (f"{home}invites", {"kind": "named", "labeler_name": f"{LABELER}", "days": "0"}),
        (f"{home}invites", {"kind": "anonymous", "note": NOTE, "days": "0", "completion_code": CODE}),
        ("/accounts/login/", {"username": LABELER, "password": "wrong"}),
    ):
        walker = Written()
        walker.feed(researcher.post(path, form).content.decode())
        assert walker.wrong == [], path
        assert walker.found & {LABELER, NOTE}, path


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("pages/label.html", 'id="prompt"'),
        ("pages/label.html", 'id="feedback-text"'),
        ("pages/label.html", 'id="toast"'),
        ("pages/label_dialogs.html", 'class="explanation muted"'),
        ("pages/label_dialogs.html", 'class="obstacle muted small"'),
        ("pages/unsaved.html", 'id="refused"'),
    ],
)
def test_scripted_text_has_its_own_direction(template: str, place: str) -> None:
    [tag] = [
        tag for tag in re.findall(r"<[^>]+>", (APP / "templates" / template).read_text()) if place in tag
    ]
    assert 'dir="auto"' in tag


def test_scripts_insert_user_text_only_in_known_places() -> None:
    """A new place has to be put into the list above."""
    known = {"prompt", "feedback-text", "toast", "progress-text", ".explanation", ".obstacle", "refused"}
    sinks = set()
    for path in APP.glob("static/feedback/js/**/*.js"):
        for line in path.read_text().splitlines():
            if re.search(r"\b(text|explanation|obstacle|message|detail)\b.*;|\.join\(", line) and (
                found := re.search(r"(\"([^\"]+)\"\)|\b(\w+))\.textContent = ", line)
            ):
                sinks.add(found[2] or found[3])
    assert sinks == known


def test_admin_isolates_user_text(experiment: models.Experiment, trainer: Trainer) -> None:
    superuser = client_of(trainer.user)
    trainer.register(1)
    ours = [(model, each) for model, each in admin.site._registry.items() if isinstance(each, ModelAdmin)]
    assert len(ours) > 15
    for model, _ in ours:
        address = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        html = superuser.get(address).content.decode()
        assert "/static/feedback/css/admin.css" in html
    form = superuser.get(reverse("admin:feedback_experiment_change", args=[experiment.pk])).content.decode()
    assert "/static/feedback/css/admin.css" in form
    [prompt] = re.findall(r"<textarea name=\"prompt\"[^>]*>", form)
    assert 'dir="auto"' in prompt
    walker = Written()
    sent = {"user": trainer.user.pk, "name": TOKEN, "expires_at_0": "", "expires_at_1": ""}
    page = superuser.post(reverse("admin:feedback_apitoken_add"), sent).content.decode()
    walker.feed(page[page.index('id="content"') - 10 : page.index('id="token"')])
    assert walker.found >= {TOKEN, RESEARCHER}
    assert walker.wrong == []


SITE = Path(human_feedback_site.__file__).parent
MARKUP = sorted(path for kind in ("html", "js", "css", "svg") for path in SITE.rglob(f"*.{kind}"))
SOURCES = sorted(path for path in SITE.rglob("*.py") if "migrations" not in path.parts)
_OWN = "|".join(OWN_ADDRESSES)
_ATTRIBUTE = re.compile(r"""\b(?:href|src|srcset|action|formaction|poster|data-\w+)\s*=\s*["']?/[^/>]""")
_PATH = re.compile(rf"/(?:{_OWN})\b")
_STRING = re.compile(rf"""["'`]/(?:{_OWN})\b""")
_LEADS_TO_ROOT = re.compile(r"""(?:url\(|import\s*\(?|from|fetch\(|assign\(|href\s*=)\s*["'`]?/(?!/)""")
# What is compared with the part of an address below the path, or shown as an example of an answer.
NO_ADDRESSES = {
    "feedback/api/examples.py": ("/media/Imh",),
    "feedback/api/problems.py": ("/api/",),
    "feedback/middleware.py": ("/livez", "/readyz", "/api/", "/media/", "/metrics"),
    "settings.py": ("/api/v1/",),
}


def in_markup(text: str) -> list[str]:
    """Return what begins with a slash where an address is meant."""
    return [found[0] for each in (_ATTRIBUTE, _STRING, _LEADS_TO_ROOT) for found in each.finditer(text)]


def in_code(source: str) -> list[str]:
    """Return the strings of a module that begin as an address of the site, or lead to the host's root."""
    nodes = list(ast.walk(ast.parse(source)))
    later = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values[1:]}
    texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant) and id(node) not in later]
    calls = [node for node in nodes if isinstance(node, ast.Call) and "edirect" in ast.unparse(node.func)]
    values = [argument for call in calls for argument in call.args]
    named = [node for node in nodes if isinstance(node, ast.Assign) and "URL" in ast.unparse(node.targets[0])]
    values += [node.value for node in named]
    return [text for text in texts if _PATH.match(text)] + ["/" for value in values if _is_root(value)]


def _is_root(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == "/"


@pytest.mark.parametrize("path", MARKUP, ids=lambda path: str(path.relative_to(SITE)))
def test_markup_and_scripts_write_no_address_of_the_site(path: Path) -> None:
    assert in_markup(path.read_text()) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SITE)))
def test_code_writes_no_address_of_the_site(path: Path) -> None:
    known = NO_ADDRESSES.get(str(path.relative_to(SITE)), ())
    assert [each for each in in_code(path.read_text()) if not each.startswith(known)] == []


@pytest.mark.parametrize(
    "text",
    [
        '<a href="/admin/">',
        "<img src='/static/x.svg'>",
        '<form action = "/join/x">',
        "<video data-src=/media/x>",
        'fetch("/session")',
        "fetch(`/${path}`)",
        "location.assign('/')",
        'const urls = { labels: "/api/v1/labels" };',
        'import { Api } from "/static/feedback/js/api.js";',
        "background: url(/static/x.png)",
    ],
)
def test_an_address_in_markup_is_found(text: str) -> None:
    assert in_markup(text)


@pytest.mark.parametrize(
    "source",
    [
        'redirect("/")',
        'HttpResponseRedirect("/")',
        'LOGIN_REDIRECT_URL = "/"',
        'url = f"/media/{token}"',
        'page = {"labels": "/api/v1/labels"}',
    ],
)
def test_an_address_in_code_is_found(source: str) -> None:
    assert in_code(source)


def test_other_text_is_ignored() -> None:
    markup = """<a href="{% url 'home' %}">a / b</a> <br/> "a minute" "/min" import("./api.js")"""
    assert in_markup(markup) == []
    assert in_code('text.rstrip("/"); root = "/dev/shm"; f"{base}/api/v1"') == []


SCRIPTS = Path(human_feedback_site.__file__).parent / "feedback" / "static" / "feedback" / "js"
KEPT = {
    f"rl-teacher.{name}"
    for name in ("character", "keys.", "learned.", "news.", "notices.", "outbox.", "pace.")
}


def test_names_of_stored_browser_data_are_stable() -> None:
    found = {
        name
        for path in SCRIPTS.rglob("*.js")
        for name in re.findall(r"rl-teacher\.[a-z.]+", path.read_text())
    }
    assert found == KEPT
