"""Stand-in for a vision-language model: an endpoint with the OpenAI protocol that looks at contact sheets.

It finds the agent in each frame by its color and scores the clip, as the task's reward would. It never sees
states or rewards. Faults make it fail as real endpoints do.
"""

import base64
import io
import itertools
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.int16]
Eye = Callable[[Sequence[Pixels]], float]
"""Returns a clip's score from its frames."""
BAND = 14  # height of the times above each frame


def _center(mask: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the mean row and column of a mask's pixels, as shares of its height and width."""
    rows, columns = np.nonzero(mask)
    if not len(rows):
        return 0.5, 0.5
    return float(rows.mean()) / mask.shape[0], float(columns.mean()) / mask.shape[1]


def pendulum(frames: Sequence[Pixels]) -> float:
    """Score how upright the red rod is, and, less, how slow it is."""
    angles = []
    for frame in frames:
        red = (frame[..., 0] - frame[..., 1] > 80) & (frame[..., 0] > 120)
        row, column = _center(red)
        angles.append(math.atan2(column - 0.5, 0.5 - row))
    turned = [
        abs((after - before + math.pi) % (2 * math.pi) - math.pi)
        for before, after in itertools.pairwise(angles)
    ]
    return -float(np.mean(np.square(angles))) - 0.5 * float(np.mean(np.square(turned)))


def reacher(frames: Sequence[Pixels]) -> float:
    """Score how close the green fingertip is to the red target."""
    distances = []
    for frame in frames:
        red, green, blue = frame[..., 0], frame[..., 1], frame[..., 2]
        target = _center((red - green > 80) & (red - blue > 80) & (blue < 110))
        tip = _center((green - red > 50) & (green - blue > 10))
        distances.append(math.dist(target, tip))
    return -float(np.mean(distances))


def brightness(frames: Sequence[Pixels]) -> float:
    """Score how bright the frames are, for tests."""
    return float(np.mean([frame.mean() for frame in frames]))


class SeeingModel(ThreadingHTTPServer):
    """Endpoint of a model that sees.

    Args:
        eye: scores a clip.
        frames: number of frames of each sheet.
        mistakes: share of questions that it answers the wrong way around, whatever the order of the clips.
        faults: what goes wrong with the first requests, one for each; see :class:`_Replies`.
        tie: scores that differ by less look alike.
        alike: answer about clips that look alike.

    Attributes:
        requests: bodies of the requests so far.
    """

    daemon_threads = True

    def __init__(
        self,
        eye: Eye,
        frames: int = 9,
        *,
        mistakes: float = 0.0,
        faults: Sequence[str] = (),
        tie: float = 0.0,
        alike: str = "cant_tell",
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Replies)
        self.eye, self.frames, self.mistakes, self.tie, self.alike = eye, frames, mistakes, tie, alike
        self.faults = list(faults)
        self.requests: list[Mapping[str, Any]] = []
        self.keys: list[str | None] = []
        self._seen: list[float] = []

    def look(self, sheet: bytes) -> float:
        """Return the score of the clip on a contact sheet."""
        pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB"), np.int16)
        columns = math.ceil(math.sqrt(self.frames))
        rows = math.ceil(self.frames / columns)
        height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
        places = [divmod(number, columns) for number in range(self.frames)]
        return self.eye(
            [
                pixels[row * height + BAND : (row + 1) * height, column * width : (column + 1) * width]
                for row, column in places
            ]
        )

    def answer(self, body: Mapping[str, Any]) -> str:
        """Return the reply to a request: reasons, and the answer in the last line."""
        instructions, question = body["messages"][0]["content"], body["messages"][1]["content"]
        begin = next(at for at, part in enumerate(question) if part.get("text", "").startswith("Now label"))
        urls = [part["image_url"]["url"] for part in question[begin:] if part["type"] == "image_url"]
        scores = [self.look(base64.b64decode(url.partition(",")[2])) for url in urls]
        # The same question in another order gets the same mistake.
        luck = random.Random("/".join(sorted(urls))).random()
        choice = self._choose(
            [-each for each in scores] if luck < self.mistakes else scores, "clearly_" in instructions
        )
        return f"The scores are {', '.join(f'{each:.3f}' for each in scores)}.\nANSWER: {choice}"

    def _choose(self, scores: Sequence[float], graded: bool) -> str:
        if len(scores) == 1:
            self._seen.append(scores[0])
            below = sum(each < scores[0] for each in self._seen) / len(self._seen)
            return str(1 + min(4, int(5 * below)))
        if max(scores) - min(scores) <= self.tie:
            return self.alike if len(scores) == 2 else "cant_tell"
        order = np.argsort(scores)
        if len(scores) > 2:
            return f"{order[-1] + 1}>{order[0] + 1}"
        return f"{'clearly_' * graded}{('left', 'right')[order[-1]]}"


class _Replies(BaseHTTPRequestHandler):
    server: SeeingModel

    def do_POST(self) -> None:
        """Answer a request for a chat completion, or fail as the next fault says."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault.isdigit():
            self._reply(int(fault), {"error": {"message": f"status {fault} for {self.server.keys[-1]}"}})
        elif fault == "limit":
            self._reply(429, {"error": {"message": "too many requests"}}, {"Retry-After": "7"})
        elif fault == "broken":
            self._reply(200, {"choices": []})
        elif fault.startswith("parameter "):
            self._reply(400, {"error": {"message": f"Unsupported parameter: {fault.partition(' ')[2]}"}})
        else:
            if fault == "slow":
                time.sleep(0.5)
            said = {
                "malformed": "The left one, I would say.",
                "two": "ANSWER: left or right",
                "refusal": "",
            }.get(fault)
            text = self.server.answer(body) if said is None else said
            message = {"role": "assistant", "content": text or None}
            usage = {"prompt_tokens": 1000, "completion_tokens": 50}
            self._reply(200, {"choices": [{"message": message}], "usage": usage})

    def _reply(self, status: int, content: object, headers: Mapping[str, str] = {}) -> None:
        data = json.dumps(content).encode()
        try:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client has given up on a slow reply

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def seeing(model: SeeingModel) -> Iterator[str]:
    """Serve a model in a thread; the value is the endpoint's URL."""
    thread = threading.Thread(target=model.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{model.server_port}/v1"
    finally:
        model.shutdown()
        thread.join()
        model.server_close()
