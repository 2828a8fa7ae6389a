"""No file writes an address of the site out, and browser storage keeps its names."""

import ast
import re
from pathlib import Path

import pytest

import human_feedback_site
from human_feedback_site.environment import OWN_ADDRESSES

SITE = Path(human_feedback_site.__file__).parent
MARKUP = sorted(path for kind in ("html", "js", "css", "svg") for path in SITE.rglob(f"*.{kind}"))
CODE = sorted(path for path in SITE.rglob("*.py") if "migrations" not in path.parts)
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


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(SITE)))
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
KEPT = {f"rl-teacher.{name}" for name in ("character", "keys.", "learned.", "news.", "outbox.", "pace.")}


def test_names_of_stored_browser_data_are_stable() -> None:
    found = {
        name
        for path in SCRIPTS.rglob("*.js")
        for name in re.findall(r"rl-teacher\.[a-z.]+", path.read_text())
    }
    assert found == KEPT
