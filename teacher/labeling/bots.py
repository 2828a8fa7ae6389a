"""Scripted labelers ("bots"), for demos and tests without people.

``python -m teacher.bots --site http://127.0.0.1:8000 --experiment ShortHopper-v1-demo --token-file token``

A bot does over HTTP what a labeler's browser does: it opens an invitation, keeps the cookies, agrees to the
consent text, leases a question of any kind, downloads its clips, answers, and resends each label until the
site acknowledges it. It reads the clips' true returns with a researcher's API token and prefers clips with
higher ones, making mistakes according to an error model from :mod:`teacher.settings.teachers`.
"""

import json
import random
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urljoin, urlsplit

import requests

from teacher.data.decisions import CANT_TELL
from teacher.errors import ConfigError, pluralize
from teacher.files import read_token
from teacher.labeling.client import BearerToken, detail_of
from teacher.queries.kinds import KINDS
from teacher.settings.arguments import OneLineParser
from teacher.settings.teachers import Answerer, ErrorModel

LONGEST_LOOK = 50.0  # maximum seconds per question; a lease expires after 60 seconds without renewal
_TIMEOUT = (5.0, 30.0)  # seconds: connect timeout, read timeout
_IDLE_SECONDS = 1.0
_LONGEST_WAIT = 10.0
_SIGN_INS = 3  # attempts per request
_PASSING = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
_SIGNED_OUT = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_CONSENT_VERSION = re.compile(r'name="version" value="([^"]+)"')
_MP4_BRAND_OFFSET = slice(4, 8)


class BotError(Exception):
    """Raised when the site responds with an error or an invalid clip, so the bot can't continue."""


class Bot(threading.Thread):
    """Thread that runs a scripted labeler until the experiment finishes or the site stops the bot.

    Args:
        name: the labeler's name; a later bot with this name acts as the same labeler.
        log: JSON Lines file to which each acknowledged label is appended; None for no log.
        error_model: model of the bot's errors; by default, the bot makes no errors. Bots with different names
            make different errors.

    Attributes:
        kind: kind of labeler, for the site.
        seconds: minimum time in seconds to spend on each question; must not exceed :data:`LONGEST_LOOK`,
            because its lease expires shortly after that. Set it before calling :meth:`start`.
        stopped: True if the labeler failed too many attention checks, or a researcher blocked it.
        error: exception that ended the bot before the experiment was finished; None if there was none.
    """

    kind: ClassVar[str] = "bot"

    def __init__(
        self,
        site: str,
        experiment: str,
        token: str,
        name: str,
        log: Path | None = None,
        error_model: ErrorModel = ErrorModel(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.seconds = 0.0
        self.answered = 0
        self.stopped = False
        self.error: Exception | None = None
        self._site = self._labeling_site = site.rstrip("/") + "/"
        self._experiment = experiment
        self._path = f"api/v1/experiments/{experiment}"
        self._token = BearerToken(token)
        self._log = log
        self._rights: Mapping[str, Any] = {}
        # One for each kind, because answers depend on the returns seen before.
        self._answerers = defaultdict[str, Answerer](lambda: Answerer(error_model, seed=0))
        self._session = requests.Session()
        self._session.trust_env = False  # a password in ~/.netrc would override the token

    def run(self) -> None:
        """Label until the experiment is finished or the site stops the labeler; set ``error`` on failure."""
        try:
            with self._session:
                self._sign_in()
                while self._label():
                    pass
        except (BotError, requests.RequestException, OSError, KeyError, TypeError, ValueError) as error:
            self.error = error

    def _sign_in(self) -> None:
        """Create an invitation and open it, which signs the bot in, and agree to any consent text."""
        link = self._invitation()
        self._session.cookies.clear()
        page = self._until_answered("GET", link)
        if not page.ok:
            raise BotError(f"the site refused the invitation: {page.status_code} {page.reason}")
        self._page = page.url
        self._session.headers["Referer"] = page.url  # Django's CSRF check requires it over HTTPS
        while page.url.endswith("/consent") and (version := _CONSENT_VERSION.search(page.text)):
            page = self._post(page.url, data={"version": version[1], "answer": "yes"})
            _check(page)
        # The invitation may redirect to a different host name or path, for which the cookies are valid.
        begins = page.url.rpartition(f"experiments/{self._experiment}/")[0]
        if begins and _cookie_scope(begins) != _cookie_scope(self._site):
            self._labeling_site = begins

    def _invitation(self) -> str:
        """Create an invitation, and return its link."""
        body = {"labeler": self.name, "labeler_kind": self.kind, **self._rights}
        while True:
            answer = self._as_researcher("POST", f"{self._path}/invites", json=body)
            if answer.status_code != HTTPStatus.NOT_FOUND:
                return str(json_of(answer)["invite_url"])
            time.sleep(_IDLE_SECONDS)  # the run has not created its experiment yet

    def _lease(self, *held: str) -> Any:
        """Renew the lease that the bot holds, or ask for one."""
        shown = held[0] if held else None
        body = {"count": 1, "held": held, "shown": shown, "kinds": list(KINDS), "labeler_kind": self.kind}
        return json_of(self._as_labeler(f"{self._path}/leases", body))

    def _label(self) -> bool:
        """Answer one question, or wait a second if there is none; return False once labeling has ended."""
        offer = self._lease()
        self.stopped = offer["notice"] == "stopped"
        if self.stopped or offer["notice"] == "done" or offer["state"] == "finished":
            return False
        if not offer["leases"]:
            time.sleep(_IDLE_SECONDS)
            return True
        lease, received = offer["leases"][0], time.monotonic()
        choice, seen = self._choose(lease, offer)
        time.sleep(max(0.0, self.seconds - (time.monotonic() - received)))
        label = {
            "uuid": str(uuid.uuid4()),
            "lease": lease["uuid"],
            "choice": choice,
            "response_ms": round(1000 * (time.monotonic() - received)),
        }
        answer = json_of(self._as_labeler("api/v1/labels", label))
        self.answered += 1
        about = {"labeler": self.name, "status": answer["status"], "comparison": lease["comparison"]}
        self.note({**label, **about, **seen})
        return True

    def _download(self, url: str) -> bytes:
        clip = self._until_answered("GET", url)
        _check(clip)
        if clip.content[_MP4_BRAND_OFFSET] != b"ftyp":
            raise BotError(f"{url} is not an MP4 file; it starts with {clip.content[:16]!r}")
        return clip.content

    def _choose(self, lease: Mapping[str, Any], offer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the choice for a question leased with ``offer``, and what else to note about it."""
        for item in items_of(lease):
            self._download(item["url"])
        truth = json_of(self._as_researcher("GET", f"{self._path}/leases/{lease['uuid']}"))
        choice = choose(truth, self._answerers[kind_of(truth)], self.name)
        return choice, {"true_returns": [item["true_return"] for item in items_of(truth)]}

    def note(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log, if there is one."""
        if self._log is not None:
            with self._log.open("a") as log:  # one write per line, because bots may share the file
                log.write(json.dumps(line) + "\n")

    def _as_researcher(self, method: str, path: str, **request: Any) -> requests.Response:
        return self._until_answered(method, path, auth=self._token, **request)

    def _as_labeler(self, path: str, body: Mapping[str, Any]) -> requests.Response:
        """Send a POST request as the labeler; sign in again if the session expired or a consent text was set.

        Both can happen at once, or again while the bot signs in. The caller reports the last refusal.
        """
        answer = self._post(path, json=body)
        for _ in range(_SIGN_INS):
            if answer.status_code not in _SIGNED_OUT:
                break
            self._sign_in()
            answer = self._post(path, json=body)
        return answer

    def _post(self, path: str, **body: Any) -> requests.Response:
        cookies = [cookie for cookie in self._session.cookies if cookie.name.startswith("csrftoken")]
        headers = {"X-CSRFToken": cookies[0].value or ""} if cookies else {}
        return self._until_answered("POST", urljoin(self._labeling_site, path), headers=headers, **body)

    def _until_answered(self, method: str, path: str, **request: Any) -> requests.Response:
        """Send a request, retrying with backoff until the response status is other than 5xx or 429."""
        wait = 0.25
        while True:
            try:
                answer = self._session.request(method, urljoin(self._site, path), timeout=_TIMEOUT, **request)
                if answer.status_code < 500 and answer.status_code != HTTPStatus.TOO_MANY_REQUESTS:
                    return answer
            except _PASSING:
                pass
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)


def _cookie_scope(url: str) -> tuple[str | None, str]:
    parts = urlsplit(url)
    return parts.hostname, parts.path


def _check(answer: requests.Response) -> None:
    if not answer.ok:
        raise BotError(f"{answer.request.method} {answer.url} failed: {detail_of(answer)}")


def json_of(answer: requests.Response) -> Any:
    """Return a response's JSON; raise BotError if the request failed."""
    _check(answer)
    return answer.json()


def kind_of(described: Mapping[str, Any]) -> str:
    """Return the kind of a leased question; sites before 0.2 know pairs only."""
    return str(described.get("kind", "pair"))


def items_of(described: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the items of a leased question in the order of the screen."""
    return described["items"] if "items" in described else (described["left"], described["right"])


def choose(truth: Mapping[str, Any], answerer: Answerer, name: str) -> str:
    """Return a bot's choice for a leased question, such as ``left``.

    Args:
        truth: parsed JSON response from the site, with each clip's true return and the comparison's UUID.
    """
    kind = KINDS[kind_of(truth)]
    returns = [item["true_return"] for item in items_of(truth)]
    if None in returns:
        return CANT_TELL
    # With the name in the key, bots make independent errors on the same comparison.
    return kind.choice(kind.scripted(answerer, returns, f"{name}/{truth['comparison']}")[0])


def _error_model(text: str) -> ErrorModel:
    """Parse the value of ``--teacher``.

    Raises:
        ConfigError: the error model is invalid, returns probabilities instead of labels, or needs inputs
            other than the true returns, which are all that bots see.
    """
    error_model = ErrorModel.parse(text)
    if error_model.needs_segment:
        raise ConfigError(
            f"--teacher: bots see only returns, not segments; run teach with --teacher {text} instead, and "
            "it will compute the returns that bots see"
        )
    if error_model.soft is not None:
        raise ConfigError("--teacher: bots can't use soft, because it answers with a probability; use noisy")
    return error_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Run bots until all have ended; return exit status 1 if any bot failed, otherwise 0."""
    parser = OneLineParser(
        prog="python -m teacher.bots",
        description="Run scripted labelers that label an experiment's clips until it is finished.",
    )
    parser.add_argument("--site", required=True, help="URL of the labeling site")
    parser.add_argument("--experiment", required=True, help="name of the experiment on the site")
    parser.add_argument("--token-file", type=Path, required=True, help="file with a researcher's API token")
    parser.add_argument("--count", type=int, default=3, help="number of bots (default: 3)")
    parser.add_argument(
        "--teacher",
        default="oracle",
        help="errors to make: oracle for none (default), or a comma-separated list of mistake:0.1, noisy:1, "
        "skip:0.5 and equal:0.5",
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="minimum per question (default: 0)")
    parser.add_argument(
        "--log", type=Path, help="append each acknowledged label to this file, as a JSON line"
    )
    options = parser.parse_args(arguments)
    try:
        token = read_token(options.token_file)
    except OSError as error:
        parser.error(f"--token-file: cannot read {options.token_file}: {error.strerror}")
    try:
        error_model = _error_model(options.teacher)
    except ConfigError as error:
        parser.error(str(error))
    if options.count < 1:
        parser.error(f"--count must be at least 1, not {options.count}")
    if not 0.0 <= options.seconds <= LONGEST_LOOK:
        parser.error(f"--seconds must be between 0 and {LONGEST_LOOK:g}, not {options.seconds:g}")
    bots = [
        Bot(options.site, options.experiment, token, f"bot-{number}", options.log, error_model)
        for number in range(1, options.count + 1)
    ]
    for bot in bots:
        bot.seconds = options.seconds
        bot.start()
    for bot in bots:
        bot.join()
        end = (
            f"; failed: {bot.error}"
            if bot.error
            else "; stopped: failed attention checks, or was blocked by a researcher"
            if bot.stopped
            else ""
        )
        print(f"{bot.name}: {pluralize(bot.answered, 'label')}{end}")
    return 1 if any(bot.error for bot in bots) else 0
