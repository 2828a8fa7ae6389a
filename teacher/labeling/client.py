"""Client for the labeling site's REST API.

Each call is one idempotent request with a timeout. The client never retries a request; callers do.
"""

import csv
import io
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit
from uuid import UUID

import requests
from msgspec import convert, to_builtins
from requests.auth import AuthBase

from teacher.connections import CONNECT_SECONDS, READ_SECONDS, PatientAdapter, json_file
from teacher.data.decisions import FeedItem, Phase, SiteState
from teacher.errors import SiteRefusedError, SiteUnreachableError
from teacher.labeling.explained import Predictions
from teacher.settings.options import FeedbackName, KindName

MAX_COMPARISONS_PER_REQUEST = 200
_GOODBYE_TIMEOUT = (1.0, 1.0)
_TRY_LATER = frozenset({408, 425, 429})
_PAGE = 1000  # maximum number of items per response
_MAX_DETAILS = 3  # maximum number of errors quoted in a message

ALWAYS_KNOWN = frozenset({"pair"})
"""Kinds of questions that every site knows; 0.1.0 knows no others."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Settings of a run's experiment, as sent to the site.

    Attributes:
        n_labels: total number of labels wanted; None if there is no limit.
        gold_rate: share of comparisons that are attention checks, set when the experiment is created; None
            for the site's default.
        pretrain_labels: number of labels needed before training starts; None if training doesn't wait.
        lowest_rating: what labelers read beside the lowest rating; None for the site's default.
        highest_rating: what labelers read beside the highest rating; None for the site's default.
        feedback: what the run asks; each question is sent with its kind.
        asks_reasons: True to let labelers write why they chose an answer.
    """

    name: str
    run_id: UUID
    env_id: str
    prompt: str
    n_labels: int | None
    fps: int
    has_true_reward: bool
    gold_rate: float | None = None
    pretrain_labels: int | None = None
    lowest_rating: str | None = None
    highest_rating: str | None = None
    feedback: FeedbackName = "pair"
    asks_reasons: bool = False


@dataclass(frozen=True)
class Experiment:
    """A run's experiment, as reported by the site.

    Attributes:
        page_url: URL of the experiment's page, where researchers watch, pause and finish it.
        label_url: URL of the labeling page, for labelers who are signed in.
        invite_url: URL that signs in one labeler and redirects to the labeling page.
        watch_url: URL whose holder labels, watches and manages the experiment; None from sites before 0.2.
    """

    name: str
    run_id: UUID
    state: SiteState
    prompt: str
    last_seq: int
    page_url: str
    label_url: str
    invite_url: str
    watch_url: str | None = None

    @property
    def url(self) -> str:
        """The link to print: ``watch_url`` or, from sites before 0.2, ``invite_url``."""
        return self.watch_url or self.invite_url


@dataclass(frozen=True)
class ClipReference:
    """A clip's key in the clip store, and the true return of the clip's segment (None if unknown)."""

    key: str
    true_return: float | None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Comparison to register on the site; all of its clips must already be in the clip store.

    Attributes:
        priority: comparisons with a higher priority are labeled first.
        gold: correct answer if this is an attention check (attention checks never appear in the feed); None
            for an ordinary comparison.
        reason: why the question was selected; empty if not known. Labelers never see it.
    """

    uuid: UUID
    phase: Phase
    step: int
    priority: int
    items: tuple[ClipReference, ...]
    kind: KindName = "pair"
    gold: str | None = None
    reason: str = ""

    @property
    def body(self) -> dict[str, Any]:
        """The comparison as JSON; a pair is as 0.1.0 describes it."""
        body: dict[str, Any] = to_builtins(self)
        if len(self.items) == 2:
            body["first"], body["second"] = body.pop("items")
        if self.kind in ALWAYS_KNOWN:
            del body["kind"]
        if not self.reason:
            del body["reason"]
        return body


@dataclass(frozen=True)
class Registered:
    """Result of a request to register comparisons."""

    registered: int
    existing: int


@dataclass(frozen=True)
class Feed:
    """Page of feed items after a cursor, and the experiment's status.

    Attributes:
        last_seq: sequence number of the experiment's newest item; ``items`` may end before it.
        items: decisions after the cursor, oldest first.
        active_labelers: number of labelers who have a question on screen or answered one in the last 2 min.
    """

    state: SiteState
    last_seq: int
    items: tuple[FeedItem, ...]
    active_labelers: int
    open: int
    open_training: int


@dataclass(frozen=True)
class Point:
    """Values for the experiment's curves at one environment step, keyed by TensorBoard tag."""

    step: int
    values: Mapping[str, float]


class BearerToken(AuthBase):
    """Adds an ``Authorization: Bearer`` header to requests, and keeps ``requests`` from using ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Set the request's ``Authorization`` header."""
        # A token that was copied badly may contain characters that headers don't allow.
        request.headers["Authorization"] = f"Bearer {quote(self._token, errors='replace')}"
        return request


class FeedbackClient:
    """Client for the site's API, with one method for each endpoint that the trainer uses.

    Every method raises :class:`SiteUnreachableError` if a retry may help (no connection, timeout, 5xx, 429),
    and :class:`SiteRefusedError` if a retry won't help.

    Args:
        site_url: URL of the site, such as ``http://127.0.0.1:8000``; may include a path.
        session: ``requests`` session to use, for custom proxies or certificates; None for a new one.
    """

    def __init__(self, site_url: str, token: str, session: requests.Session | None = None) -> None:
        self.site_url = site_url.rstrip("/")
        if session is None:
            session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, PatientAdapter())
            # No proxy reaches this machine's loopback address.
            session.trust_env = not _is_loopback(self.site_url)
        self._session = session
        self._session.auth = BearerToken(token)

    def check(self) -> None:
        """Check that the site is ready and accepts the token.

        Raises:
            SiteRefusedError: the URL doesn't belong to a labeling site, or the token is invalid.
            SiteUnreachableError: the site doesn't respond or isn't ready.
        """
        self._call(lambda data: data["status"], "GET", "/readyz")
        try:
            self.decisions("-", 0, 1)
        except SiteRefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # a valid token gives 404, as no experiment is named "-"
                raise

    def kinds(self) -> frozenset[str]:
        """Return the kinds of questions that the site knows."""
        return self._call(lambda data: frozenset(data.get("kinds", ALWAYS_KNOWN)), "GET", "/readyz")

    def put_experiment(self, settings: ExperimentSettings, *, state: SiteState | None = None) -> Experiment:
        """Create the experiment or update its settings, and set its state unless ``state`` is None.

        Raises:
            SiteRefusedError: a different run uses the experiment's name (status 409).
        """
        body = to_builtins(settings)
        del body["name"]
        if body.pop("feedback") == "study":
            body["compares_kinds"] = True
        if not body["asks_reasons"]:
            del body["asks_reasons"]
        for optional in ("gold_rate", "pretrain_labels", "lowest_rating", "highest_rating"):
            if body[optional] is None:
                del body[optional]
        if state is not None:
            body["state"] = state
        return self._call(lambda data: convert(data, Experiment), "PUT", _path(settings.name), body)

    def register(self, experiment: str, comparisons: Sequence[Registration]) -> Registered:
        """Register comparisons for labeling, atomically: if the site refuses any, none are registered.

        Raises:
            SiteRefusedError: the site can't read a clip (status 422), or has a different comparison with the
                same UUID (status 409).
        """
        body = {"comparisons": [comparison.body for comparison in comparisons]}
        return self._call(
            lambda data: convert(data, Registered), "POST", _path(experiment, "comparisons"), body
        )

    def decisions(self, experiment: str, after: int, limit: int = _PAGE) -> Feed:
        """Read up to ``limit`` feed items whose sequence numbers are above ``after``, oldest first."""
        path = _path(experiment, f"decisions?after={after}&limit={limit}")
        return self._call(lambda data: convert(data, Feed), "GET", path)

    def statuses(self, experiment: str) -> dict[UUID, str]:
        """Return each comparison's status (``open``, ``answered`` or ``cancelled``), keyed by UUID."""
        statuses: dict[UUID, str] = {}
        after = 0
        while True:
            path = _path(experiment, f"comparisons?after={after}&limit={_PAGE}")
            page = self._call(_read_statuses, "GET", path)
            statuses |= {uuid: status for _, uuid, status in page}
            if len(page) < _PAGE:
                return statuses
            after = page[-1][0]

    def labels(self, experiment: str) -> list[dict[str, str]]:
        """Read the table of all labels, oldest first, as text by column (docs/datasets.md)."""
        text = self._request("GET", _path(experiment, "labels.csv")).content.decode()
        return list(csv.DictReader(io.StringIO(text, newline="")))

    def cancel(self, experiment: str, comparisons: Sequence[UUID]) -> int:
        """Cancel comparisons, except those that already have a label; return the number canceled."""
        body = {"comparisons": to_builtins(comparisons)}
        return self._call(lambda data: int(data["cancelled"]), "POST", _path(experiment, "cancel"), body)

    def post_points(
        self,
        experiment: str,
        points: Sequence[Point],
        waiting_for: int | None,
        predicted: Predictions | None = None,
    ) -> int:
        """Add points to the experiment's curves, and return how many the site stored.

        Args:
            waiting_for: number of labels that training is waiting for, shown to labelers; None if it isn't
                waiting.
            predicted: predicted rewards to show to researchers; sites before 0.2 ignore them.
        """
        body = {"points": to_builtins(points), "waiting_for": waiting_for}
        if predicted is not None:
            body["predicted"] = predicted.body
        return self._call(lambda data: int(data["stored"]), "POST", _path(experiment, "points"), body)

    def say_goodbye(self, experiment: str, points: Sequence[Point]) -> None:
        """Store the last points, and tell the site that this trainer stops; wait two seconds at most."""
        body = {"points": to_builtins(points), "waiting_for": None, "stopped": True}
        self._call(lambda data: data["stored"], "POST", _path(experiment, "points"), body, _GOODBYE_TIMEOUT)

    def add_episode(self, experiment: str, step: int, key: str) -> None:
        """Show labelers the episode video recorded at environment step ``step``.

        The video must be in the clip store under ``key``.

        Raises:
            SiteRefusedError: the site can't read the video in the clip store (status 422).
        """
        self._call(
            lambda data: data["stored"], "POST", _path(experiment, "episodes"), {"step": step, "key": key}
        )

    def close(self) -> None:
        """Close the pooled connections."""
        self._session.close()

    def _call(
        self,
        parse: Callable[[Mapping[str, Any]], T],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: tuple[float, float] | None = None,
    ) -> T:
        response = self._request(method, path, body, timeout)
        try:
            return parse(response.json())
        except (KeyError, TypeError, ValueError) as error:
            raise SiteRefusedError(
                f"{self.site_url} did not respond like a labeling site of this version ({method} {path}: "
                f"{error!r}); check the URL, and make sure that the same version of RL-Teacher is installed "
                "here and on the site",
                response.status_code,
                by_site=_is_json(response),
            ) from error

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: tuple[float, float] | None = None,
    ) -> requests.Response:
        try:
            # Redirects are errors, because following one would turn a PUT or POST into a GET.
            response = self._session.request(
                method,
                self.site_url + path,
                data=None if body is None else json_file(body),
                headers={} if body is None else {"Content-Type": "application/json"},
                timeout=timeout or (CONNECT_SECONDS, READ_SECONDS),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise SiteUnreachableError(
                f"no response from the labeling site at {self.site_url}: {_reason(error)}"
            ) from error
        if response.status_code >= 500 or response.status_code in _TRY_LATER:
            raise SiteUnreachableError(
                f"the labeling site at {self.site_url} is temporarily unavailable: {detail_of(response)}"
            )
        if not response.ok or response.is_redirect:
            raise SiteRefusedError(self._refusal(response), response.status_code, by_site=_is_json(response))
        return response

    def _refusal(self, response: requests.Response) -> str:
        hint = "; create one with `teach site token USER` on the site and set TEACHER_TOKEN to it"
        match response.status_code:
            case 401:
                return f"the labeling site at {self.site_url} does not accept the token{hint}"
            case 403:
                return f"the labeling site at {self.site_url} needs a researcher's token{hint}"
            case status if 300 <= status < 400:
                return f"{self.site_url} redirects to {response.headers.get('Location')}; use that URL"
            case _:
                return f"the labeling site at {self.site_url} refused the request: {detail_of(response)}"


def _read_statuses(data: Mapping[str, Any]) -> list[tuple[int, UUID, str]]:
    return [(int(item["id"]), UUID(item["uuid"]), str(item["status"])) for item in data["items"]]


def _path(experiment: str, rest: str | None = None) -> str:
    path = f"/api/v1/experiments/{quote(experiment, safe='')}"
    return path if rest is None else f"{path}/{rest}"


def _is_json(response: requests.Response) -> bool:
    return "json" in response.headers.get("Content-Type", "")


def detail_of(response: requests.Response) -> str:
    """Return the response's problem details (RFC 9457) on one line, or its HTTP status if it has none."""
    status = f"{response.status_code} {response.reason}"
    try:
        problem = response.json()
        details = [problem.get("detail") or problem["title"]]
        details += [f"{error['pointer']}: {error['detail']}" for error in problem.get("errors", [])]
    except (ValueError, TypeError, KeyError, AttributeError):
        return status
    return f"{' '.join(details[:_MAX_DETAILS])} ({status})"


def _reason(error: requests.RequestException) -> str:
    """Return the message of the innermost cause, such as ``[Errno 111] Connection refused``."""
    if isinstance(error, requests.Timeout):
        return "timed out"
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return str(cause) or type(cause).__name__


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
