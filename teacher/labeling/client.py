"""Client of the labeling site's REST API.

Every call is one idempotent request with a timeout. Nothing here waits or retries: callers decide that, as
they know what else there is to do meanwhile.
"""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit
from uuid import UUID

import requests
from msgspec import convert, to_builtins

from teacher.data.decisions import FeedItem, Phase, SiteState
from teacher.errors import SiteRefusedError, SiteUnreachableError
from teacher.labeling.bearer import BearerToken

MAX_COMPARISONS_PER_REQUEST = 200
_TIMEOUT = (5.0, 30.0)  # seconds to connect, seconds between bytes of the response
_TRY_LATER = frozenset({408, 425, 429})
_PAGE = 1000  # maximum items per response
_MAX_DETAILS = 3  # errors quoted in a message

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Settings of a run's experiment on the site; ``name`` is unique there, ``fps`` is that of clips.

    Attributes:
        pretrain_labels: labels needed before training starts; None if training does not wait for any.
        gold_rate: share of attention checks, which the site adopts from a new run; None leaves it to the
            site.
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


@dataclass(frozen=True)
class Experiment:
    """A run's experiment on the site.

    Attributes:
        last_seq: number of the newest feed item.
        page_url: the experiment's page, where researchers watch, pause and finish it.
        label_url: the labeling page, for labelers who are signed in.
        invite_url: link that signs one labeler in and leads to the labeling page.
    """

    name: str
    run_id: UUID
    state: SiteState
    prompt: str
    last_seq: int
    page_url: str
    label_url: str
    invite_url: str


@dataclass(frozen=True)
class ClipReference:
    """A clip in the media store, and its segment's true return if the environment has one."""

    key: str
    true_return: float | None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A comparison with both clips in the store; higher ``priority`` is labeled first.

    Attributes:
        gold: the known answer of an attention check, which the feed never returns; None for others.
    """

    uuid: UUID
    phase: Phase
    step: int
    priority: int
    first: ClipReference
    second: ClipReference
    gold: Literal["first", "second", "equal"] | None = None


@dataclass(frozen=True)
class Registered:
    """Numbers of new and of already known comparisons in a request."""

    registered: int
    existing: int


@dataclass(frozen=True)
class Feed:
    """Feed items after a cursor, and the experiment's status.

    Attributes:
        last_seq: number of the experiment's newest item, higher than the last of ``items`` if there are more.
        active_labelers: labelers with a pair on their screen or a label in the last two minutes.
        open: comparisons without a decision.
        open_training: open comparisons of the training phase.
    """

    state: SiteState
    last_seq: int
    items: tuple[FeedItem, ...]
    active_labelers: int
    open: int
    open_training: int


@dataclass(frozen=True)
class Point:
    """Values of a run's curves at one environment step, by tag."""

    step: int
    values: Mapping[str, float]


class FeedbackClient:
    """Client of the site's API, with a method per endpoint that the trainer uses.

    Every method raises :class:`SiteUnreachableError` if retrying later may help (no connection, timeout, 5xx,
    429) and :class:`SiteRefusedError` if it will not.

    Args:
        site_url: URL of the site, such as ``http://127.0.0.1:8000``; a path before ``/api`` is kept.
        token: a researcher's token.
        session: connection pool to use, for custom proxies or certificates.
    """

    def __init__(self, site_url: str, token: str, session: requests.Session | None = None) -> None:
        self.site_url = site_url.rstrip("/")
        self._session = requests.Session() if session is None else session
        self._session.auth = BearerToken(token)
        if session is None and _is_loopback(self.site_url):
            self._session.trust_env = False  # a proxy cannot reach this machine's own address

    def check(self) -> None:
        """Check that the site is ready and accepts the token.

        Raises:
            SiteRefusedError: another program responds there, or the token is invalid.
            SiteUnreachableError: there is no response, or the site is not ready.
        """
        self._call(lambda data: data["status"], "GET", "/readyz")
        try:
            self.decisions("-", 0, 1)
        except SiteRefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # with a valid token it is not found
                raise

    def put_experiment(self, settings: ExperimentSettings, *, state: SiteState | None = None) -> Experiment:
        """Create or update the experiment; ``state`` None leaves its state unchanged.

        Raises:
            SiteRefusedError: another run has this name (status 409).
        """
        body = to_builtins(settings)
        del body["name"]
        for optional in ("gold_rate", "pretrain_labels"):
            if body[optional] is None:
                del body[optional]
        if state is not None:
            body["state"] = state
        return self._call(lambda data: convert(data, Experiment), "PUT", _path(settings.name), body)

    def register(self, experiment: str, comparisons: Sequence[Registration]) -> Registered:
        """Register comparisons for labeling, all or none; at most ``MAX_COMPARISONS_PER_REQUEST``.

        Raises:
            SiteRefusedError: the site cannot read a clip (status 422), or has a UUID with other content
                (409).
        """
        body = {"comparisons": to_builtins(comparisons)}
        return self._call(
            lambda data: convert(data, Registered), "POST", _path(experiment, "comparisons"), body
        )

    def decisions(self, experiment: str, after: int, limit: int = _PAGE) -> Feed:
        """Read at most ``limit`` feed items with numbers above ``after``, oldest first."""
        path = _path(experiment, f"decisions?after={after}&limit={limit}")
        return self._call(lambda data: convert(data, Feed), "GET", path)

    def statuses(self, experiment: str) -> dict[UUID, str]:
        """Read the status of each registered comparison: open, answered or cancelled."""
        statuses: dict[UUID, str] = {}
        after = 0
        while True:
            path = _path(experiment, f"comparisons?after={after}&limit={_PAGE}")
            page = self._call(_read_statuses, "GET", path)
            statuses |= {uuid: status for _, uuid, status in page}
            if len(page) < _PAGE:
                return statuses
            after = page[-1][0]

    def cancel(self, experiment: str, comparisons: Sequence[UUID]) -> int:
        """Cancel comparisons that have no label yet, and return their number."""
        body = {"comparisons": to_builtins(comparisons)}
        return self._call(lambda data: int(data["cancelled"]), "POST", _path(experiment, "cancel"), body)

    def post_points(self, experiment: str, points: Sequence[Point], waiting_for: int | None) -> int:
        """Add points to the experiment's curves, and set the number of labels that training waits for."""
        body = {"points": to_builtins(points), "waiting_for": waiting_for}
        return self._call(lambda data: int(data["stored"]), "POST", _path(experiment, "points"), body)

    def add_episode(self, experiment: str, step: int, key: str) -> None:
        """Show labelers a whole episode's video, which is in the media store.

        Raises:
            SiteRefusedError: the site cannot read it (status 422).
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
    ) -> T:
        try:
            # Following a redirect would turn a PUT or POST into a GET, so it is an error.
            response = self._session.request(
                method, self.site_url + path, json=body, timeout=_TIMEOUT, allow_redirects=False
            )
        except requests.RequestException as error:
            raise SiteUnreachableError(
                f"no response from the labeling site at {self.site_url}: {_reason(error)}"
            ) from error
        if response.status_code >= 500 or response.status_code in _TRY_LATER:
            raise SiteUnreachableError(
                f"the labeling site at {self.site_url} is not available now: {_detail(response)}"
            )
        if not response.ok or response.is_redirect:
            raise SiteRefusedError(self._refusal(response), response.status_code)
        try:
            return parse(response.json())
        except (KeyError, TypeError, ValueError) as error:
            raise SiteRefusedError(
                f"{self.site_url} is not a labeling site of this version ({method} {path}: {error!r}); "
                "check the address and that both sides are up to date",
                response.status_code,
            ) from error

    def _refusal(self, response: requests.Response) -> str:
        hint = (
            "; create one with `python manage.py create_token USER` on the site and set TEACHER_TOKEN to it"
        )
        match response.status_code:
            case 401:
                return f"the labeling site at {self.site_url} does not accept the token{hint}"
            case 403:
                return f"the labeling site at {self.site_url} expects a researcher's token{hint}"
            case status if 300 <= status < 400:
                return f"{self.site_url} redirects to {response.headers.get('Location')}; use that address"
            case _:
                return f"the labeling site at {self.site_url} refused: {_detail(response)}"


def _read_statuses(data: Mapping[str, Any]) -> list[tuple[int, UUID, str]]:
    """Return id, UUID and status of each comparison on a page of the list."""
    return [(int(item["id"]), UUID(item["uuid"]), str(item["status"])) for item in data["items"]]


def _path(experiment: str, rest: str | None = None) -> str:
    path = f"/api/v1/experiments/{quote(experiment, safe='')}"
    return path if rest is None else f"{path}/{rest}"


def _detail(response: requests.Response) -> str:
    """Return an RFC 9457 problem in one line, or only the status if the body is something else."""
    status = f"{response.status_code} {response.reason}"
    try:
        problem = response.json()
        details = [problem.get("detail") or problem["title"]]
        details += [f"{error['pointer']}: {error['detail']}" for error in problem.get("errors", [])]
    except (ValueError, TypeError, KeyError, AttributeError):
        return status
    return f"{' '.join(details[:_MAX_DETAILS])} ({status})"


def _reason(error: requests.RequestException) -> str:
    """Return the innermost cause, such as "[Errno 111] Connection refused", of wrapped exceptions."""
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
