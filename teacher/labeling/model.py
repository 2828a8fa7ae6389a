"""A vision-language model as a labeler: it looks at contact sheets of clips, and answers over REST."""

import base64
import contextlib
import csv
import io
import json
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urljoin

import imageio_ffmpeg
from PIL import Image, ImageDraw

from teacher.data.decisions import CANT_TELL
from teacher.errors import TeacherError
from teacher.labeling.bots import Bot, BotError, items_of, json_of, kind_of
from teacher.labeling.client import detail_of
from teacher.labeling.endpoint import Endpoint, LimitReachedError, Message, estimate
from teacher.queries.kinds import KINDS
from teacher.queries.kinds.base import Kind
from teacher.settings.endpoint import EndpointSettings

LINK = re.compile(r"(https?://.+/)j/[^/?#]+/?")
"""Matches an invitation link, and the URL of its site."""
_EXPERIMENT = re.compile(r"/experiments/([^/]+)/")
_PICTURE = re.compile(r"(?<=data:image/png;base64,)[\w+/=]+")
_BAND = 14  # pixels above each frame, for its time
_ANSWER = re.compile(r"^\W*answer\W*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_APOSTROPHES = str.maketrans("", "", "'\N{RIGHT SINGLE QUOTATION MARK}")
_INSTRUCTIONS = """\
You label clips of an agent that is taught a behavior. The question is: {prompt}

Each picture is a contact sheet of one clip: frames in reading order, each below its time in seconds. Judge \
what happens from frame to frame. The order of the clips means nothing.

First write your reasons in at most three sentences. Then end with one line, ANSWER: followed by one of \
{choices}. {hint} Write {cant_tell} if you are not sure."""
_REMINDER = "End with one line, ANSWER: followed by one of {choices}."


@dataclass(frozen=True)
class Sheet:
    """Contact sheet of a clip as a data URL, and its number of pixels."""

    url: str
    pixels: int

    @classmethod
    def of(cls, clip: bytes, settings: EndpointSettings) -> "Sheet":
        """Make the sheet of an MP4 file."""
        picture, file = contact_sheet(clip, settings.frames, settings.width), io.BytesIO()
        picture.save(file, "PNG")
        data = base64.b64encode(file.getvalue()).decode()
        return cls(f"data:image/png;base64,{data}", picture.width * picture.height)


def contact_sheet(clip: bytes, frames: int, width: int) -> Image.Image:
    """Draw evenly spaced frames of an MP4 file, with the first and the last, each below its time.

    Raises:
        BotError: the file can't be decoded.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        path.write_bytes(clip)
        command = (imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path))
        try:
            length, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
            scaled = ("-vf", f"scale={width}:-1:flags=area", f"{folder}/%05d.png")
            subprocess.run([*command, *scaled], check=True, capture_output=True)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            raise BotError("a clip can't be decoded; look at it on the experiment's page") from error
        files = sorted(Path(folder).glob("*.png"))
        count = min(frames, len(files))
        numbers = [round(place * (len(files) - 1) / max(1, count - 1)) for place in range(count)]
        pictures = [Image.open(files[number]).convert("RGB") for number in numbers]
    columns, height = math.ceil(math.sqrt(count)), pictures[0].height
    sheet = Image.new("RGB", (columns * width, math.ceil(count / columns) * (height + _BAND)), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (number, picture) in enumerate(zip(numbers, pictures, strict=True)):
        left, top = place % columns * width, place // columns * (height + _BAND)
        draw.text((left + 2, top + 1), f"{number * seconds / length:.2f} s", "black")
        sheet.paste(picture, (left, top + _BAND))
    return sheet


def choices_of(kind: Kind) -> Sequence[str]:
    """Return what a model may answer to a kind of question."""
    return [*kind.choices, CANT_TELL]


def parse(reply: str, kind: Kind) -> str | None:
    """Return the choice in the last line of a reply that begins with ANSWER; None if it isn't a valid one."""
    lines = _ANSWER.findall(reply)
    said = lines[-1].lower().translate(_APOSTROPHES) if lines else ""
    choice = re.sub(r"_*>_*", ">", re.sub(r"[^\w>]+", "_", said)).strip("_")
    return choice if choice in choices_of(kind) else None


def labeler_name(model: str) -> str:
    """Return a name that the site accepts for a labeler, such as ``Qwen-Qwen3-VL`` for ``Qwen/Qwen3-VL``."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", model).strip("-.")[:50] or "model"


class ModelLabeler(Bot):
    """Thread in which a model labels an experiment, until it is finished or a limit is reached.

    Each question is asked in both orders of the clips. If the two answers contradict each other, the label is
    "can't tell". All replies are appended to the log, from which a later run knows what was used, and what
    the model has said about a question that it still has.

    Args:
        site: URL of the site, or an invitation link, which needs neither the experiment's name nor a token.
        share: share of the questions that the model may decide without people; set by the creator of an
            invitation link.

    Attributes:
        limit: what ended the labeling; None if no limit was reached.
        labels: number of labels, also of earlier runs with this log.
    """

    kind: ClassVar[str] = "model"

    def __init__(
        self, site: str, experiment: str, token: str, endpoint: Endpoint, log: Path, *, share: float = 0.0
    ) -> None:
        link = LINK.fullmatch(site)
        super().__init__(
            link[1] if link else site, experiment, token, labeler_name(endpoint.settings.model), log
        )
        self.limit: LimitReachedError | None = None
        self._rights = {"share": share}
        self._link = link and link[0]
        self._endpoint = endpoint
        self._examples: Sequence[tuple[Mapping[str, Any], Sequence[Sheet]]] | None = None
        self._replies: dict[tuple[str, int], str] = {}
        self.labels = 0
        for line in _lines_of(log):
            if "reply" in line:
                self._replies[line["lease"], line["order"]] = line["reply"]
                endpoint.used.add(line["sent"], line["received"])
            else:
                self.labels += 1

    def run(self) -> None:
        """Label until the experiment is finished or a limit is reached; set ``error`` on failure."""
        try:
            super().run()
        except LimitReachedError as limit:
            self.limit = limit
        except TeacherError as error:
            self.error = error

    def preview(self) -> tuple[str, list[bytes]] | None:
        """Return a request about the next question with its cost, and its pictures; None if there is none.

        Raises:
            BotError: the site or its clips can't be read.
        """
        self._sign_in()
        offer = self._lease()
        if not offer["leases"]:
            return None
        [lease] = offer["leases"]
        sheets, settings = self._sheets(lease), self._endpoint.settings
        messages, pixels = self._messages(lease, sheets, offer)
        text = json.dumps(messages, indent=2, ensure_ascii=False)
        sent, received = estimate(messages, pixels)
        cost = "" if settings.price_in is None else f", which costs up to {settings.cost(sent, received):.4f}"
        orders = "; each label needs two requests, one for each order of the clips" * (len(sheets) > 1)
        about = f"about {sent:,} tokens to send and up to {received:,} to receive{cost}{orders}"
        pictures = [base64.b64decode(sheet.url.partition(",")[2]) for sheet in sheets]
        return f"{_PICTURE.sub('…', text)}\n{about}", pictures

    def note(self, line: Mapping[str, Any]) -> None:
        """Append a reply or a label to the log, and print the label."""
        super().note(line)
        if "choice" in line:
            self.labels += 1
            print(
                f"{line['kind']}: {line['choice']} ({line['response_ms'] / 1000:.1f} s, {line['status']})",
                flush=True,
            )

    def exported(self, table: str) -> list[dict[str, str]]:
        """Return the rows of one of the experiment's exported tables, which needs a researcher's token."""
        answer = self._as_researcher("GET", f"{self._path}/{table}.csv")
        if not answer.ok:
            raise BotError(f"the site refused to export {table}: {detail_of(answer)}")
        return list(csv.DictReader(io.StringIO(answer.content.decode())))

    def _invitation(self) -> str:
        return self._link or super()._invitation()

    def _sign_in(self) -> None:
        super()._sign_in()
        if self._link:
            found = _EXPERIMENT.search(self._page)
            if found is None:
                raise BotError("the link doesn't invite one labeler; make one with teach site invite --model")
            self._path = f"api/v1/experiments/{found[1]}"

    def _choose(self, lease: Mapping[str, Any], offer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        kind, sheets = KINDS[kind_of(lease)], self._sheets(lease)
        choice = self._ask(lease, sheets, offer, order=0)
        if kind.size > 1 and choice != CANT_TELL:  # one that can't tell in one order can't tell
            self._lease(lease["uuid"])  # because a model may take longer than a lease lasts
            other = self._ask(lease, sheets[::-1], offer, order=1)
            choice = kind.reconciled(choice, kind.reversed(other))
        return choice, {"kind": kind.name}

    def _ask(
        self, lease: Mapping[str, Any], sheets: Sequence[Sheet], offer: Mapping[str, Any], order: int
    ) -> str:
        """Return the model's choice for one order of the clips; "can't tell" if it has no valid one."""
        kind, key = KINDS[kind_of(lease)], (lease["uuid"], order)
        if key not in self._replies:
            messages, pixels = self._messages(lease, sheets, offer)
            text = self._reply(messages, pixels, key)
            if parse(text, kind) is None:
                reminder = _REMINDER.format(choices=", ".join(choices_of(kind)))
                again: list[Message] = [
                    {"role": "assistant", "content": text or "..."},
                    {"role": "user", "content": reminder},
                ]
                self._reply([*messages, *again], pixels, key)
        return parse(self._replies[key], kind) or CANT_TELL

    def _reply(self, messages: Sequence[Message], pixels: int, key: tuple[str, int]) -> str:
        reply = self._endpoint.ask(messages, pixels)
        lease, order = key
        used = {"sent": reply.sent, "received": reply.received}
        self.note({"lease": lease, "order": order, "reply": reply.text, **used})
        self._replies[key] = reply.text
        return reply.text

    def _sheets(self, described: Mapping[str, Any]) -> list[Sheet]:
        return [
            Sheet.of(self._download(item["url"]), self._endpoint.settings) for item in items_of(described)
        ]

    def _messages(
        self, lease: Mapping[str, Any], sheets: Sequence[Sheet], offer: Mapping[str, Any]
    ) -> tuple[list[Message], int]:
        """Return a request with the experiment's prompt and examples, and the pixels of its pictures."""
        kind = KINDS[kind_of(lease)]
        if self._examples is None:
            path = urljoin(self._labeling_site, f"{self._path}/examples")
            found = json_of(self._until_answered("GET", path))["items"]
            self._examples = [(each, self._sheets(each)) for each in found]
        examples = [example for example in self._examples if kind_of(example[0]) == kind.name]
        instructions = _INSTRUCTIONS.format(
            prompt=offer["prompt"], choices=", ".join(choices_of(kind)), hint=kind.hint, cant_tell=CANT_TELL
        )
        content: list[Mapping[str, Any]] = []
        pixels = 0
        for example, shown in [*examples, (None, sheets)]:
            content.append(_text("An example:" if example else f"Now label this: {kind.question}"))
            for place, sheet in zip(kind.places, shown, strict=True):
                content += [_text(f"Clip {place}:"), {"type": "image_url", "image_url": {"url": sheet.url}}]
                pixels += sheet.pixels
            if example:
                content.append(_text(f"{example['explanation']}\nANSWER: {example['better']}".strip()))
        return [{"role": "system", "content": instructions}, {"role": "user", "content": content}], pixels


def _lines_of(log: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a log; one that was cut off when the machine stopped is left out."""
    text = log.read_text() if log.exists() else ""
    if not text.endswith("\n") and text:
        with log.open("a") as file:
            file.write("\n")
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _text(text: str) -> Mapping[str, Any]:
    return {"type": "text", "text": text}
