"""Scripted labelers, for demonstrations and tests without people.

``python -m teacher.bots --site http://127.0.0.1:8000 --experiment ShortHopper-v1-demo --token-file token``

A bot does over HTTP what a browser does: it opens an invitation, keeps the cookies, leases a pair, fetches
both clips, answers by the side of the screen, and repeats an answer until the site acknowledges it. It reads
the true returns with a researcher's token, and prefers the higher one or follows an error model of
:mod:`teacher.settings.teachers`.
"""

import json
import random
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from teacher.errors import ConfigError, pluralize
from teacher.files import read_token
from teacher.labeling.bearer import BearerToken
from teacher.settings.arguments import OneLineParser
from teacher.settings.teachers import Answerer, ErrorModel

LONGEST_LOOK = 50.0  # seconds; a lease that is not renewed lasts 60
_TIMEOUT = (5.0, 30.0)  # seconds to connect, seconds between bytes of the response
_IDLE_SECONDS = 1.0
_LONGEST_WAIT = 10.0
_PASSING = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
_SIGNED_OUT = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_CHOICES = {1.0: "left", 0.0: "right", 0.5: "equal", None: "cant_tell"}
_MP4_BRAND_OFFSET = slice(4, 8)


class BotError(Exception):
    """The site's response would stop a labeler's browser."""


class Bot(threading.Thread):
    """A scripted labeler; ends when the experiment is finished or the site stops it.

    Args:
        site: address of the site.
        experiment: name of the experiment.
        token: token of the researcher who owns the experiment.
        name: the labeler's name; a bot of the same name continues as the same labeler.
        log: file to append each acknowledged label to, as a line of JSON.
        error_model: error model, by default always correct. Bots of different names make different errors.

    Attributes:
        seconds: minimum time per pair; set it before the start. At most :data:`LONGEST_LOOK`, as the lease
            expires later.
        answered: acknowledged labels so far.
        stopped: True if the site stopped it because it failed too many attention checks.
        error: why it ended before the experiment did.
    """

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
        self._answerer = Answerer(error_model, seed=0)
        self._session = requests.Session()
        self._session.trust_env = False  # a password in ~/.netrc would replace the token

    def run(self) -> None:
        """Label until the experiment is finished."""
        try:
            with self._session:
                self._sign_in()
                while self._label():
                    pass
        except (BotError, requests.RequestException, OSError, KeyError, TypeError, ValueError) as error:
            self.error = error

    def _sign_in(self) -> None:
        """Create and open an invitation, which leads to the labeling page and its cookies."""
        while True:
            answer = self._as_researcher("POST", f"{self._path}/invites", json={"labeler": self.name})
            if answer.status_code != HTTPStatus.NOT_FOUND:
                break
            time.sleep(_IDLE_SECONDS)  # the run has not created its experiment yet
        self._session.cookies.clear()
        page = self._until_answered("GET", _json(answer)["invite_url"])
        _check(page)
        self._session.headers["Referer"] = page.url  # Django requires it over HTTPS
        # Cookies are valid where the invitation leads, which may be another host name or path of the site.
        begins = page.url.rpartition(f"experiments/{self._experiment}/")[0]
        if begins and _place(begins) != _place(self._site):
            self._labeling_site = begins

    def _label(self) -> bool:
        """Label one pair, or wait if there is none; return False once there will be no more."""
        offer = _json(self._as_labeler(f"{self._path}/leases", {"count": 1, "held": [], "shown": None}))
        self.stopped = offer["notice"] == "stopped"
        if self.stopped or offer["notice"] == "done" or offer["state"] == "finished":
            return False
        if not offer["leases"]:
            time.sleep(_IDLE_SECONDS)
            return True
        lease, received = offer["leases"][0], time.monotonic()
        for side in ("left", "right"):
            self._watch(lease[side]["url"])
        truth = _json(self._as_researcher("GET", f"{self._path}/leases/{lease['uuid']}"))
        time.sleep(max(0.0, self.seconds - (time.monotonic() - received)))
        self._answer(lease, truth, received)
        return True

    def _watch(self, url: str) -> None:
        clip = self._until_answered("GET", url)
        _check(clip)
        if clip.content[_MP4_BRAND_OFFSET] != b"ftyp":
            raise BotError(f"expected an mp4 at {url}, got {clip.content[:16]!r}")

    def _answer(self, lease: Mapping[str, Any], truth: Mapping[str, Any], received: float) -> None:
        label = {
            "uuid": str(uuid.uuid4()),
            "lease": lease["uuid"],
            "choice": choose(truth, self._answerer, self.name),
            "response_ms": round(1000 * (time.monotonic() - received)),
        }
        answer = _json(self._as_labeler("api/v1/labels", label))
        self.answered += 1
        if self._log is not None:
            line = {
                **label,
                "labeler": self.name,
                "status": answer["status"],
                "comparison": lease["comparison"],
            }
            line |= {side: truth[side]["true_return"] for side in ("left", "right")}
            with self._log.open("a") as log:  # a single write per line, as bots may share the file
                log.write(json.dumps(line) + "\n")

    def _as_researcher(self, method: str, path: str, **request: Any) -> requests.Response:
        return self._until_answered(method, path, auth=self._token, **request)

    def _as_labeler(self, path: str, body: Mapping[str, Any]) -> requests.Response:
        """Post as the labeler, signing in again if the session has ended."""
        answer = self._post(path, body)
        if answer.status_code in _SIGNED_OUT:
            self._sign_in()
            answer = self._post(path, body)  # refused again, it is an error; retrying would never end
        return answer

    def _post(self, path: str, body: Mapping[str, Any]) -> requests.Response:
        cookies = [cookie for cookie in self._session.cookies if cookie.name.startswith("csrftoken")]
        headers = {"X-CSRFToken": cookies[0].value or ""} if cookies else {}
        return self._until_answered("POST", self._labeling_site + path, json=body, headers=headers)

    def _until_answered(self, method: str, path: str, **request: Any) -> requests.Response:
        """Repeat a request until the site responds, with any status."""
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


def _place(url: str) -> tuple[str | None, str]:
    """Return the host and path of a URL, to which cookies are bound."""
    parts = urlsplit(url)
    return parts.hostname, parts.path


def _check(answer: requests.Response) -> None:
    if not answer.ok:
        raise BotError(f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text[:200]}")


def _json(answer: requests.Response) -> Any:
    _check(answer)
    return answer.json()


def choose(truth: Mapping[str, Any], answerer: Answerer, name: str) -> str:
    """Choose the side with the higher true return, with the errors of this labeler."""
    left, right = (truth[side]["true_return"] for side in ("left", "right"))
    if left is None or right is None:
        return "cant_tell"
    # The key includes the name, so that bots make independent errors on the same comparison.
    return _CHOICES[answerer.answer(left, right, f"{name}/{truth['comparison']}")]


def _error_model(text: str) -> ErrorModel:
    """Parse ``--teacher``; raises :class:`ConfigError` for a model that bots cannot follow."""
    error_model = ErrorModel.parse(text)
    if error_model.needs_segment:
        raise ConfigError(
            f"--teacher: a bot sees returns only; pass {text} to teach, which computes them for bots"
        )
    if error_model.soft is not None:
        raise ConfigError("--teacher: soft gives a probability, which bots cannot click; expected noisy")
    return error_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Run bots until the experiment is finished, and return the exit status."""
    parser = OneLineParser(prog="python -m teacher.bots", description="Scripted labelers.")
    parser.add_argument("--site", required=True, help="URL of the labeling site")
    parser.add_argument("--experiment", required=True, help="name of the experiment on the site")
    parser.add_argument("--token-file", type=Path, required=True, help="file with a researcher's token")
    parser.add_argument("--count", type=int, default=3, help="number of bots (default: 3)")
    parser.add_argument(
        "--teacher",
        default="oracle",
        help="error model: oracle, or mistake:0.1, noisy:1, skip:0.5, equal:0.5, joined by commas",
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="minimum seconds per pair (default: 0)")
    parser.add_argument("--log", type=Path, help="append each acknowledged label to this file, as JSON")
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
        parser.error(f"--count: expected 1 or more, got {options.count}")
    if not 0.0 <= options.seconds <= LONGEST_LOOK:
        parser.error(f"--seconds: expected 0 to {LONGEST_LOOK:g}, got {options.seconds:g}")
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
            else "; stopped by failed attention checks"
            if bot.stopped
            else ""
        )
        print(f"{bot.name}: {pluralize(bot.answered, 'label')}{end}")
    return 1 if any(bot.error for bot in bots) else 0
