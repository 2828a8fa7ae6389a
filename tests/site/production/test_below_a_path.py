"""The site as one of several on its host, at https://host/teacher, behind proxies of both kinds."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from uuid import uuid4

import pytest
import requests

from human_feedback_site.environment import OWN_ADDRESSES
from human_feedback_site.feedback.pages.urls import urlpatterns as page_patterns
from human_feedback_site.urls import urlpatterns
from teacher.labeling.bots import Bot
from teacher.labeling.client import ExperimentSettings
from tests.databases import Using
from tests.reverse_proxy import PASSWORD, PATH, Below, below_a_path, make_admin
from tests.site.production.conftest import Production


@pytest.fixture(scope="module")
def running(
    production: Callable[[str, Path], Production],
    migrated_database: Path,
    using: Using,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Below]:
    """A site on SQLite that serves below a path."""
    folder = tmp_path_factory.mktemp("site")
    database = f"sqlite:///{shutil.copy(migrated_database, folder / 'site.sqlite3')}"
    with below_a_path(production(database, folder), using) as below:
        yield below


@pytest.fixture(params=[False, True], ids=["passed on", "cut off"])
def below(request: pytest.FixtureRequest, running: Below) -> Iterator[Below]:
    """The site behind a proxy that passes the path on or cuts it off; nothing goes past the path."""
    running.proxy.cuts = request.param
    yield running
    assert running.proxy.astray == []


class Person(requests.Session):
    """Somebody with a browser: keeps cookies by their paths, and sends forms with their token."""

    def __init__(self, below: Below) -> None:
        super().__init__()
        self.below = below

    def send_form(self, page: str, to: str, **fields: str) -> requests.Response:
        """Send a form of a page to an address, both below the site's own."""
        answer = self.get(self.below.url + page)
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', answer.text)
        assert token is not None, answer.text
        return self.post(self.below.url + to, {"csrfmiddlewaretoken": token[1], **fields})

    def sign_in(self, path: str = "") -> requests.Response:
        """Sign in as the admin, at the site or at one below its path."""
        page = f"{path}/accounts/login/"
        return self.send_form(page, page, username="root", password=PASSWORD)

    def ask(self, path: str, body: object) -> Any:
        """Post JSON to the API as the labeling page does; ``path`` has the site's path."""
        [token] = [cookie.value for cookie in self.cookies if cookie.name == "csrftoken_teacher"]
        answer = self.post(self.below.proxy.url + path, json=body, headers={"X-CSRFToken": token or ""})
        assert answer.ok, answer.text
        return answer.json()


class Links(HTMLParser):
    """The addresses in a page."""

    def __init__(self, page: requests.Response) -> None:
        super().__init__()
        self.found: list[str] = []
        self.forms: list[str] = []
        self._base = page.url
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what a tag leads to or loads."""
        for name, value in attrs:
            if name in {"href", "src", "poster"} and value and not value.startswith(("#", "data:")):
                self.found.append(urljoin(self._base, value).partition("#")[0])
            elif name == "action" and value:
                self.forms.append(urljoin(self._base, value))


def test_refused_paths_are_the_sites_own_prefixes() -> None:
    patterns: list[Any] = [*urlpatterns, *page_patterns]
    first = {str(each.pattern).split("/")[0] for each in patterns} - {""}
    assert first | {"static"} == set(OWN_ADDRESSES)


def test_probes_answer_below_the_path_and_at_the_root(below: Below) -> None:
    for probe in ("livez", "readyz"):
        for address in (below.url, below.site.url, below.site.url + PATH):
            assert requests.get(f"{address}/{probe}", timeout=60).status_code == 200
    assert not re.search("livez|readyz", below.site.text())


@pytest.mark.parametrize("below", [True], indirect=True, ids=["cut off"])  # for both, pages are the same
def test_links_of_every_page_are_below_the_path(below: Below) -> None:
    name = below.put("links", pairs=1).name
    admin = Person(below)
    assert admin.sign_in().url == f"{below.url}/"
    waiting, seen, pages = {f"{below.url}/", f"{below.url}/api/docs/"}, set[str](), set[str]()
    while waiting:
        address = waiting.pop()
        seen.add(address)
        answer = admin.get(address)
        assert answer.status_code == 200, address
        if not answer.headers["Content-Type"].startswith("text/html"):
            continue
        shape = address.removeprefix(below.url).replace(name, "NAME")
        shape = re.sub(r"[0-9a-f-]{36}|\d+|\?.*", "*", shape)
        links = Links(answer)
        assert all(each.startswith(f"{below.url}/") for each in links.found + links.forms), address
        if shape in pages:
            continue
        pages.add(shape)
        waiting |= {each for each in links.found if not re.search(r"/admin/.*\?", each)} - seen
    assert {"/", "/experiments/NAME/", "/experiments/NAME/invites", "/admin/", "/api/docs/"} <= pages
    assert "/admin/feedback/comparison/*/change/" in pages
    assert len(pages) > 30


def test_a_trainer_is_told_addresses_below_the_path(below: Below) -> None:
    client = below.client()
    client.check()
    experiment = below.put("told", pairs=1)
    assert experiment.page_url == f"{below.url}/experiments/{experiment.name}/"
    assert experiment.label_url == f"{below.url}/experiments/{experiment.name}/label"
    assert experiment.invite_url.startswith(f"{below.url}/j/")
    assert list(client.statuses(experiment.name).values()) == ["open"]
    client.close()


def test_labeling_works_below_the_path(below: Below) -> None:
    experiment = below.put("joined", pairs=2)
    person = Person(below)
    page = person.get(experiment.invite_url)
    assert page.url == experiment.label_url
    urls = dict(re.findall(r'"(leases|labels|session|history|done|examples|progress)": "([^"]+)"', page.text))
    assert len(urls) == 7
    assert {url.split("/")[1] for url in urls.values()} == {"teacher"}
    account = person.get(below.proxy.url + urls["session"]).json()["account"]
    assert re.fullmatch(r"/teacher:\d+-\d+", account)  # what the browser keeps is no other site's
    assert f'"account": "{account}"' in page.text
    for name in ("history", "done", "examples", "progress"):
        assert person.get(below.proxy.url + urls[name]).status_code == 200
    [lease] = person.ask(urls["leases"], {"count": 1, "held": [], "shown": None})["leases"]
    assert lease["left"]["url"].startswith(f"{PATH}/media/")
    clip = person.get(below.proxy.url + lease["left"]["url"], headers={"Range": "bytes=4-7"})
    assert (clip.status_code, clip.content) == (206, b"ftyp")
    label = str(uuid4())
    body = {"uuid": label, "lease": lease["uuid"], "choice": "left", "response_ms": 900}
    assert person.ask(urls["labels"], body)["status"] == "counted"
    assert label in person.get(below.proxy.url + urls["history"]).text
    person.ask(f"{urls['labels']}/{label}/undo", {"uuid": str(uuid4())})
    assert label not in person.get(below.proxy.url + urls["history"]).text


def test_cookies_are_limited_to_the_path(below: Below) -> None:
    person = Person(below)
    # Of a site at the root of the host; a browser sends them, too.
    for name in ("sessionid", "csrftoken", "django_language"):
        person.cookies.set(name, "zh-hans", domain="127.0.0.1", path="/")
    assert person.sign_in().url == f"{below.url}/"
    assert 'lang="en"' in person.get(f"{below.url}/").text
    changed = person.send_form("/", "/i18n/setlang/", language="zh-hans", next=f"{PATH}/admin/")
    assert changed.url == f"{below.url}/admin/"
    assert 'lang="zh-hans"' in changed.text
    own = {cookie.name: cookie.path for cookie in person.cookies if cookie.path != "/"}
    assert own == dict.fromkeys(("sessionid_teacher", "csrftoken_teacher", "django_language_teacher"), PATH)


def test_redirects_lead_below_the_path(below: Below) -> None:
    def leads_to(path: str) -> str:
        answer = requests.get(below.url + path, allow_redirects=False, timeout=60)
        assert answer.status_code in {301, 302}, path
        return answer.headers["Location"]

    assert requests.get(below.site.url + PATH, timeout=60).url.endswith(
        f"{PATH}/accounts/login/?next={PATH}/"
    )
    assert leads_to("/") == f"{PATH}/accounts/login/?next={PATH}/"
    assert leads_to("/admin/") == f"{PATH}/admin/login/?next={PATH}/admin/"
    assert leads_to("/i18n/setlang/") == f"{PATH}/"
    assert leads_to("/admin") == f"{PATH}/admin/"
    assert leads_to("/experiments/x/label?a=1").endswith(f"?next={PATH}/experiments/x/label%3Fa%3D1")
    person = Person(below)
    person.sign_in()
    out = person.send_form("/", "/accounts/logout/")
    assert out.url == f"{below.url}/accounts/login/"
    assert person.get(f"{below.url}/").url == f"{below.url}/accounts/login/?next={PATH}/"


def test_csrf_and_api_errors_below_the_path(below: Below) -> None:
    form = {"username": "root", "password": PASSWORD}
    assert requests.post(f"{below.url}/accounts/login/", form, timeout=60).status_code == 403
    for path, kind in (("/api/nothing", "application/problem+json"), ("/nothing", "text/html")):
        answer = requests.get(below.url + path, timeout=60)
        assert (answer.status_code, answer.headers["Content-Type"].split(";")[0]) == (404, kind)


def test_the_schema_names_the_path_in_its_servers(below: Below) -> None:
    schema = requests.get(f"{below.url}/api/schema/?format=json", timeout=60).json()
    assert schema["servers"] == [{"url": PATH}]
    assert "/api/v1/labels" in schema["paths"]


@pytest.mark.parametrize("below", [False], indirect=True, ids=["passed on"])  # both proxies read it alike
@pytest.mark.parametrize("beside", [False, True], ids=["through the proxy", "beside the site"])
def test_bots_label_below_the_path(below: Below, beside: bool) -> None:
    experiment = below.put("bots", pairs=3)
    client = below.client()
    bot = Bot(below.site.url if beside else below.url, experiment.name, below.token, "bot-1")
    bot.start()
    while bot.is_alive() and set(client.statuses(experiment.name).values()) != {"answered"}:
        time.sleep(0.1)
    settings = {"env_id": "x", "prompt": "Which?", "n_labels": 9, "fps": 20, "has_true_reward": True}
    values: Any = {"name": experiment.name, "run_id": experiment.run_id, **settings}
    client.put_experiment(ExperimentSettings(**values), state="finished")
    bot.join(60)
    assert (bot.error, bot.answered) == (None, 3)
    client.close()


def test_commands_write_links_below_the_path(running: Below) -> None:
    name = running.put("commanded").name
    for options in ([], ["--site-url", running.url], ["--site-url", f"{running.proxy.url}{PATH}/"]):
        command = running.site.run("manage.py", "create_invite", name, "mia", *options)
        assert command.stdout.startswith(f"{running.url}/j/"), command.stderr
    assert requests.get(command.stdout.strip(), timeout=60).url == f"{running.url}/experiments/{name}/label"


def test_two_sites_of_one_host_are_independent(
    running: Below, new_site: Production, migrated_database: Path, tmp_path: Path, using: Using
) -> None:
    shutil.copy(migrated_database, tmp_path / "site.sqlite3")
    with using(new_site.environment["DATABASE_URL"]):
        make_admin()
    other = "/teacher/two"
    new_site.start(TEACHER_PUBLIC_URL=running.proxy.url + other, WEB_CONCURRENCY="1")
    running.proxy.cuts = True
    running.proxy.sites = {other: new_site.url, PATH: running.site.url}
    person = Person(running)
    try:
        for path in ("", "/two"):
            assert person.sign_in(path).url == f"{running.url}{path}/"
        for path in ("", "/two"):
            assert person.get(f"{running.url}{path}/").url == f"{running.url}{path}/"
        names = {cookie.name for cookie in person.cookies if cookie.path == other}
        assert names == {"sessionid_teacher_two", "csrftoken_teacher_two"}
        person.send_form("/two/", "/two/accounts/logout/")
        assert person.get(f"{running.url}/two/").url.startswith(f"{running.url}/two/accounts/login/")
        assert person.get(f"{running.url}/").url == f"{running.url}/"
    finally:
        running.proxy.sites = {PATH: running.site.url}


def test_https_redirect_below_the_path_spares_probes_and_trainers(site: Production) -> None:
    site.start(TEACHER_PUBLIC_URL="https://teach.example.org:8443/a/b.c", WEB_CONCURRENCY="1")
    for path in ("", "/a/b.c"):
        url = site.url + path

        def get(rest: str, **headers: str) -> requests.Response:
            return requests.get(url + rest, headers=headers, allow_redirects=False, timeout=60)  # noqa: B023

        answer = get("/accounts/login/?next=/")
        assert answer.headers["Location"] == "https://teach.example.org:8443/a/b.c/accounts/login/?next=/"
        assert [get(probe).status_code for probe in ("/livez", "/readyz")] == [200, 200]
        assert get("/metrics").status_code == 404
        assert get("/api/v1/experiments/x").status_code == 401
        page = get("/accounts/login/", **{"Host": "teach.example.org:8443", "X-Forwarded-Proto": "https"})
        assert page.status_code == 200
        assert "Path=/a/b.c; SameSite=Lax; Secure" in page.headers["Set-Cookie"]
        assert "Strict-Transport-Security" not in page.headers
