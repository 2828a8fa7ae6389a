"""The labeling site's REST interface, from the trainer's side.

Every call is one request with a timeout, and every request may be repeated without harm. Nothing here waits
and tries again: whoever calls decides that, because only they know what else there is to do meanwhile.
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
_TIMEOUT = (5.0, 30.0)  # seconds to connect, seconds between two bytes of the answer
_TRY_LATER = frozenset({408, 425, 429})
_PAGE = 1000  # the most that one answer holds
_MAX_DETAILS = 3  # of many errors of one kind

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """What the site is told about a run; ``name`` is unique on the site, ``fps`` is the clips'.

    Attributes:
        pretrain_labels: answers that are needed before training starts; None where none are waited for.
        gold_rate: share of what labelers see whose answer is known, which the site takes from a new run; None
            leaves it to the site.
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
    """A run as the site knows it.

    Attributes:
        last_seq: number of the newest feed item.
        page_url: its own page, where researchers watch, pause and finish it.
        label_url: the labeling page, for people who are signed in.
        invite_url: a link that signs one labeler in and leads to the labeling page.
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
    """A clip in the media store, and the true return of its segment where the environment has one."""

    key: str
    true_return: float | None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A comparison whose two clips can be read; the higher ``priority`` is labeled first.

    Attributes:
        gold: its answer where that is known. Such a pair finds out labelers who do not look, and never comes
            back as a decision.
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
    """How many comparisons of one request were new, and how many the site had already."""

    registered: int
    existing: int


@dataclass(frozen=True)
class Feed:
    """The feed after a cursor, and how the experiment stands.

    Attributes:
        last_seq: number of the experiment's newest item; larger than the last of ``items`` where more wait.
        active_labelers: people with a pair on their screen or an answer in the last two minutes.
        open: comparisons without a decision; ``open_training`` those of the training phase.
    """

    state: SiteState
    last_seq: int
    items: tuple[FeedItem, ...]
    active_labelers: int
    open: int
    open_training: int


@dataclass(frozen=True)
class Point:
    """Values of a run's curves (tag to value) at one environment step."""

    step: int
    values: Mapping[str, float]


class FeedbackClient:
    """One method per endpoint that the trainer uses.

    Every method raises :class:`SiteUnreachableError` where trying again later may help (no connection, no
    answer in time, 5xx, 429) and :class:`SiteRefusedError` where it will not.

    Args:
        site_url: address of the site, such as ``http://127.0.0.1:8000``; a path in front of ``/api`` is kept.
        token: a researcher's token.
        session: the connection pool to use, for callers with their own proxies or certificates.
    """

    def __init__(self, site_url: str, token: str, session: requests.Session | None = None) -> None:
        self.site_url = site_url.rstrip("/")
        self._session = requests.Session() if session is None else session
        self._session.auth = BearerToken(token)
        if session is None and _is_loopback(self.site_url):
            self._session.trust_env = False  # a proxy cannot reach this machine's own address

    def check(self) -> None:
        """See that a site of this kind answers, is ready, and takes the token of a researcher.

        Raises:
            SiteRefusedError: something else answers there, or the token is not good.
            SiteUnreachableError: nothing answers, or the site is not ready.
        """
        self._call(lambda data: data["status"], "GET", "/readyz")
        try:
            self.decisions("-", 0, 1)
        except SiteRefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # there is no such experiment: that is told to some only
                raise

    def put_experiment(self, settings: ExperimentSettings, *, state: SiteState | None = None) -> Experiment:
        """Create the experiment or go on with it; ``state`` None leaves its state alone.

        Raises:
            SiteRefusedError: status 409 where another run has this name.
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
        """Offer comparisons to labelers, all or none of them; at most ``MAX_COMPARISONS_PER_REQUEST``.

        Raises:
            SiteRefusedError: status 422 where the site cannot read a clip, 409 where it knows a UUID with
                other content.
        """
        body = {"comparisons": to_builtins(comparisons)}
        return self._call(
            lambda data: convert(data, Registered), "POST", _path(experiment, "comparisons"), body
        )

    def decisions(self, experiment: str, after: int, limit: int = _PAGE) -> Feed:
        """Read the feed items with a number above ``after``, oldest first, at most ``limit``."""
        path = _path(experiment, f"decisions?after={after}&limit={limit}")
        return self._call(lambda data: convert(data, Feed), "GET", path)

    def statuses(self, experiment: str) -> dict[UUID, str]:
        """Read the status of each comparison the site knows: open, answered or cancelled."""
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
        """Withdraw comparisons nobody has answered; returns how many were withdrawn."""
        body = {"comparisons": to_builtins(comparisons)}
        return self._call(lambda data: int(data["cancelled"]), "POST", _path(experiment, "cancel"), body)

    def post_points(self, experiment: str, points: Sequence[Point], waiting_for: int | None) -> int:
        """Add to the curves on the experiment's page and say how many labels training waits for."""
        body = {"points": to_builtins(points), "waiting_for": waiting_for}
        return self._call(lambda data: int(data["stored"]), "POST", _path(experiment, "points"), body)

    def add_episode(self, experiment: str, step: int, key: str) -> None:
        """Show labelers the video of a whole episode that is in the media store.

        Raises:
            SiteRefusedError: status 422 where the site cannot read it.
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
            # A redirect would turn a PUT or POST into a GET, so it is reported instead of followed.
            response = self._session.request(
                method, self.site_url + path, json=body, timeout=_TIMEOUT, allow_redirects=False
            )
        except requests.RequestException as error:
            raise SiteUnreachableError(
                f"no answer from the labeling site at {self.site_url}: {_reason(error)}"
            ) from error
        if response.status_code >= 500 or response.status_code in _TRY_LATER:
            raise SiteUnreachableError(
                f"the labeling site at {self.site_url} cannot answer now: {_detail(response)}"
            )
        if not response.ok or response.is_redirect:
            raise SiteRefusedError(self._refusal(response), response.status_code)
        try:
            return parse(response.json())
        except (KeyError, TypeError, ValueError) as error:
            raise SiteRefusedError(
                f"{self.site_url} does not answer as a labeling site of this version does "
                f"({method} {path}: {error!r}); check the address and that both sides are up to date",
                response.status_code,
            ) from error

    def _refusal(self, response: requests.Response) -> str:
        hint = (
            "; make one with `python manage.py create_token USER` on the site and put it into TEACHER_TOKEN"
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
    """Read number, UUID and status of each comparison on a page of the list."""
    return [(int(item["id"]), UUID(item["uuid"]), str(item["status"])) for item in data["items"]]


def _path(experiment: str, rest: str | None = None) -> str:
    path = f"/api/v1/experiments/{quote(experiment, safe='')}"
    return path if rest is None else f"{path}/{rest}"


def _detail(response: requests.Response) -> str:
    """Return an RFC 9457 problem in one line; the bare status where the body is something else."""
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
