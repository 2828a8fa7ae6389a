"""Client for OpenAI-compatible endpoints of vision-language models, with limits on requests and money."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests

from teacher.clips.backoff import Backoff
from teacher.connections import CONNECT_SECONDS
from teacher.errors import TeacherError, one_line
from teacher.labeling.client import BearerToken
from teacher.settings.endpoint import KEY_VARIABLES, EndpointSettings

Message = Mapping[str, Any]
"""A message of a request: its role and its content."""
REPLY_TOKENS = 1000  # at most, for reasons and the answer
ATTEMPTS = 8
_READ_SECONDS = 300.0
_PIXELS_PER_TOKEN = 750  # of a picture, about
_CHARACTERS_PER_TOKEN = 4
_TRY_LATER = frozenset({408, 409, 425, 429})
# Parameters that some endpoints refuse, and what to send instead.
_OPTIONAL: Mapping[str, Mapping[str, Any]] = {
    "max_tokens": {"max_completion_tokens": REPLY_TOKENS},
    "temperature": {},
}


class ModelError(TeacherError):
    """Raised when an endpoint refuses a request, or doesn't reply after several attempts."""


class LimitReachedError(TeacherError):
    """Raised instead of a request that might exceed the budget or the number of tokens."""


@dataclass
class Used:
    """Tokens and requests of a model so far."""

    requests: int = 0
    sent: int = 0
    received: int = 0

    def add(self, sent: int, received: int) -> None:
        """Count one request."""
        self.requests, self.sent, self.received = (
            self.requests + 1,
            self.sent + sent,
            self.received + received,
        )


@dataclass(frozen=True)
class Reply:
    """A model's reply: its text, and the tokens that were sent and received."""

    text: str
    sent: int
    received: int


@dataclass
class Endpoint:
    """Sends requests to a model, one at a time, within the limits.

    Attributes:
        used: what the model has used; requests of earlier runs may be added.
    """

    settings: EndpointSettings
    used: Used = field(default_factory=Used)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._key = next(filter(None, map(os.environ.get, KEY_VARIABLES)), "")
        self._session = requests.Session()
        # Without an authentication of its own, requests would send a password from ~/.netrc.
        self._session.auth = BearerToken(self._key) if self._key else lambda request: request
        self._options: dict[str, Any] = {"max_tokens": REPLY_TOKENS, "temperature": 0}
        self._next = 0.0

    @property
    def cost(self) -> float:
        """Cost of all requests so far."""
        return self.settings.cost(self.used.sent, self.used.received)

    def ask(self, messages: Sequence[Message], pixels: int) -> Reply:
        """Send a request, retrying with growing delays while the endpoint is unavailable.

        Args:
            pixels: size of all pictures in the messages, for an estimate of the request's cost.

        Raises:
            LimitReachedError: the request might exceed the budget or the number of tokens.
            ModelError: the endpoint refused the request, or didn't reply.
        """
        expected = estimate(messages, pixels)
        self._require_room(expected)
        backoff, problem = Backoff(), ""
        for _ in range(ATTEMPTS):
            self.sleep(max(self._next - self.clock(), 0.0))
            self._next = self.clock() + 60.0 / (self.settings.per_minute or 1e9)
            wait = 0.0
            try:
                answer = self._post(messages)
            except requests.RequestException as error:
                problem = type(error).__name__
            else:
                if answer.ok and (reply := _read(answer, expected)) is not None:
                    self.used.add(reply.sent, reply.received)
                    return reply
                problem = self._problem(answer)
                if answer.status_code == 400 and self._drop_option(answer.text):
                    continue
                if 300 <= answer.status_code < 500 and answer.status_code not in _TRY_LATER:
                    raise ModelError(f"the endpoint at {self.settings.host} refused the request: {problem}")
                wait = _retry_after(answer)
            backoff.failed(ModelError(problem))
            self.sleep(max(backoff.seconds_left(), wait))
        raise ModelError(
            f"no reply from {self.settings.model} at {self.settings.host} after {ATTEMPTS} attempts: "
            f"{problem}; check --url, then run the command again to continue"
        )

    def _post(self, messages: Sequence[Message]) -> requests.Response:
        return self._session.post(
            f"{self.settings.url.rstrip('/')}/chat/completions",
            json={"model": self.settings.model, "messages": messages, **self._options},
            timeout=(CONNECT_SECONDS, _READ_SECONDS),
            allow_redirects=False,
        )

    def _require_room(self, expected: tuple[int, int]) -> None:
        limits, (sent, received) = self.settings, expected
        if self.used.requests:  # what requests needed so far says more than the estimate
            sent = max(sent, self.used.sent // self.used.requests)
        tokens = self.used.sent + self.used.received
        if limits.max_tokens is not None and tokens + sent + received > limits.max_tokens:
            raise LimitReachedError(
                f"another request might exceed --max_tokens {limits.max_tokens:,}; {tokens:,} are used"
            )
        if limits.budget is not None and self.cost + limits.cost(sent, received) > limits.budget:
            raise LimitReachedError(
                f"another request might exceed --budget {limits.budget:g}; {self.cost:.4f} is spent"
            )

    def _drop_option(self, refusal: str) -> bool:
        """Leave out an optional parameter that a refusal names; return True if there was one."""
        name = next((name for name in self._options if name in _OPTIONAL and name in refusal), None)
        if name is not None:
            del self._options[name]
            self._options |= _OPTIONAL[name]
        return name is not None

    def _problem(self, answer: requests.Response) -> str:
        """Return what an endpoint said, on one line and without the key."""
        said = one_line(answer.text)[:200] or answer.reason
        said = said.replace(self._key, "***") if self._key else said
        hint = (
            f" (the key is read from {' or '.join(KEY_VARIABLES)})"
            if answer.status_code in (401, 403)
            else ""
        )
        return f"status {answer.status_code}{hint}: {said}"


def estimate(messages: Sequence[Message], pixels: int) -> tuple[int, int]:
    """Return about how many tokens a request sends, and the most it can receive."""
    characters = 0
    for message in messages:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        characters += sum(len(part.get("text", "")) for part in parts)
    return characters // _CHARACTERS_PER_TOKEN + pixels // _PIXELS_PER_TOKEN, REPLY_TOKENS


def _read(answer: requests.Response, expected: tuple[int, int]) -> Reply | None:
    """Return an endpoint's reply; None if it isn't one. A refusal to answer is a reply without text."""
    try:
        body = answer.json()
        text = str(body["choices"][0]["message"].get("content") or "")
        usage = body.get("usage") or {}
        received = usage.get("completion_tokens", len(text) // _CHARACTERS_PER_TOKEN)
        return Reply(text, int(usage.get("prompt_tokens", expected[0])), int(received))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def _retry_after(answer: requests.Response) -> float:
    """Return the seconds that an endpoint asks to wait, at most a minute."""
    try:
        return min(60.0, max(0.0, float(answer.headers.get("Retry-After", 0.0))))
    except ValueError:
        return 0.0
