"""A vision-language model as a labeler, with an endpoint that looks at the pictures, and its faults."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from benchmarks.seeing_model import SeeingModel, brightness, reacher, seeing
from teacher.cli.label import main
from teacher.clips import backoff
from teacher.clips.encode import encode
from teacher.errors import ConfigError
from teacher.labeling import endpoint as endpoints
from teacher.labeling.bots import BotError
from teacher.labeling.endpoint import Endpoint, LimitReachedError, ModelError
from teacher.labeling.model import ModelLabeler, Sheet, contact_sheet, labeler_name, parse
from teacher.labeling.model_report import report
from teacher.queries.kinds import KINDS
from teacher.settings.endpoint import EndpointSettings

LEVELS = (40, 90, 140, 190)
KEY = "sk-very-secret"
cached_sheet = cache(Sheet.of)
QUESTIONS = [("pair", 2), ("graded", 2), ("rating", 1), ("best_worst", 4)]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Clips of a second, by name; the greater its number, the brighter a clip gets."""
    found = {}
    for number, level in enumerate(LEVELS, 1):
        path = tmp_path_factory.mktemp("clips") / "clip.mp4"
        frames = (np.full((48, 64, 3), level * step // 10, np.uint8) for step in range(1, 11))
        encode(frames, path, 10, 64)
        found[str(number)] = path.read_bytes()
    return found


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(Sheet, "of", cached_sheet)


def lease_of(kind: str, *shown: str, lease: str = "a") -> dict[str, Any]:
    return {"uuid": lease, "comparison": "c", "kind": kind, "items": [{"url": each} for each in shown]}


class Desk:
    """A model at work without a site, on questions about clips."""

    def __init__(self, clips: Mapping[str, bytes], log: Path, **settings: Any) -> None:
        self.endpoint = Endpoint(
            EndpointSettings(**{"model": "m", "width": 32, **settings}), sleep=self.slept
        )
        self.waits: list[float] = []
        self.labeler = ModelLabeler("http://127.0.0.1:9", "x", "t", self.endpoint, log)
        vars(self.labeler).update(_download=clips.__getitem__, _lease=lambda *_: None, _examples=[])

    def slept(self, seconds: float) -> None:
        self.waits.append(seconds)

    def choose(self, kind: str, shown: Sequence[str], lease: str = "a") -> str:
        offer = {"prompt": "Which is brighter?"}
        return self.labeler._choose(lease_of(kind, *shown, lease=lease), offer)[0]


@pytest.mark.parametrize(
    ("kind", "shown", "choice"),
    [
        ("pair", "12", "right"),
        ("pair", "41", "left"),
        ("pair", "22", "cant_tell"),
        ("graded", "12", "clearly_right"),
        ("rating", "3", "1"),
        ("best_worst", "2413", "2>3"),
    ],
)
def test_a_model_that_sees_answers_every_kind_of_question(
    clips: Mapping[str, bytes], tmp_path: Path, kind: str, shown: str, choice: str
) -> None:
    model = SeeingModel(brightness)
    with seeing(model) as url:
        desk = Desk(clips, tmp_path / "log", url=url)
        assert desk.choose(kind, shown) == choice
    assert len(model.requests) == (1 if choice in {"1", "cant_tell"} else 2)
    assert model.keys[0] == f"Bearer {KEY}"
    assert KEY not in (tmp_path / "log").read_text()
    told = model.requests[0]["messages"]
    assert "Which is brighter?" in told[0]["content"]
    assert KINDS[kind].hint in told[0]["content"]


def always(text: str) -> SeeingModel:
    """A model that says the same whatever it sees."""
    model = SeeingModel(brightness)
    model.answer = lambda body: text  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("kind", "said", "choice"),
    [
        ("pair", "left", "cant_tell"),  # the same place in both orders
        ("pair", "equal", "equal"),
        ("graded", "slightly_left", "cant_tell"),
        ("best_worst", "1>4", "cant_tell"),
        ("rating", "4", "4"),
        ("rating", "cant_tell", "cant_tell"),
    ],
)
def test_contradictions_between_the_orders_are_cant_tell(
    clips: Mapping[str, bytes], tmp_path: Path, kind: str, said: str, choice: str
) -> None:
    with seeing(always(f"Because.\nANSWER: {said}")) as url:
        desk = Desk(clips, tmp_path / "log", url=url)
        assert desk.choose(kind, "1234"[: dict(QUESTIONS)[kind]]) == choice


@pytest.mark.parametrize(
    ("kind", "reply", "choice"),
    [
        ("pair", "Left is higher.\n**ANSWER: Left.**", "left"),
        ("pair", "ANSWER: left\nOn reflection:\nAnswer: right", "right"),
        ("pair", "<think>ANSWER: left</think>\nanswer = can’t tell", "cant_tell"),
        ("pair", "ANSWER: left or right", None),
        ("pair", "left", None),
        ("pair", "ANSWER: 1", None),
        ("graded", "ANSWER: clearly left", "clearly_left"),
        ("graded", "ANSWER: left", None),
        ("rating", "ANSWER: **4**", "4"),
        ("rating", "ANSWER: 6", None),
        ("rating", "ANSWER: 4/5", None),
        ("best_worst", "ANSWER: 1 > 4", "1>4"),
        ("best_worst", "ANSWER: 4>4", None),
        ("pair", "", None),
    ],
)
def test_the_last_answer_line_is_read(kind: str, reply: str, choice: str | None) -> None:
    assert parse(reply, KINDS[kind]) == choice


@pytest.mark.parametrize(("kind", "size"), QUESTIONS)
def test_reversed_choices_mean_the_same_items(kind: str, size: int) -> None:
    asked = KINDS[kind]
    places = [*map(str, range(1, size + 1))]
    for choice in asked.choices:
        assert asked.reversed(asked.reversed(choice)) == choice
        swapped = {"left": "right", "right": "left", **dict(zip(places, reversed(places), strict=True))}
        expected = "".join(
            swapped.get(word, word) for word in choice.replace("_", " _ ").replace(">", " > ").split()
        )
        assert asked.reversed(choice) == (choice if size == 1 else expected)
    assert KINDS["graded"].reconciled("clearly_left", "slightly_left") == "slightly_left"
    assert KINDS["graded"].reconciled("clearly_left", "slightly_right") == "cant_tell"
    assert KINDS["graded"].reconciled("equal", "slightly_right") == "cant_tell"


@pytest.mark.parametrize("fault", ["malformed", "two", "refusal"])
def test_a_model_that_gives_no_answer_is_reminded_once(
    clips: Mapping[str, bytes], tmp_path: Path, fault: str
) -> None:
    model = SeeingModel(brightness, faults=[fault])
    with seeing(model) as url:
        assert Desk(clips, tmp_path / "log", url=url).choose("pair", "12") == "right"
        model.faults = [fault, fault]
        assert Desk(clips, tmp_path / "other", url=url).choose("pair", "12") == "cant_tell"
    assert model.requests[1]["messages"][-1]["content"].startswith("End with one line, ANSWER:")


@pytest.mark.parametrize("fault", ["500", "429", "limit", "broken", "slow", "parameter temperature"])
def test_temporary_failures_are_retried(
    clips: Mapping[str, bytes], tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "slow":
        monkeypatch.setattr(endpoints, "_READ_SECONDS", 0.2)
    with seeing(SeeingModel(brightness, faults=[fault])) as url:
        desk = Desk(clips, tmp_path / "log", url=url)
        assert desk.choose("pair", "12") == "right"
    assert (max(desk.waits) == 7) == (fault == "limit")  # the delay that the endpoint asked for


def test_an_endpoint_that_wants_another_parameter_gets_it(clips: Mapping[str, bytes], tmp_path: Path) -> None:
    model = SeeingModel(brightness, faults=["parameter max_tokens"])
    with seeing(model) as url:
        assert Desk(clips, tmp_path / "log", url=url).choose("pair", "12") == "right"
    assert "max_completion_tokens" not in model.requests[0]
    assert model.requests[1]["max_completion_tokens"] == model.requests[0]["max_tokens"]


@pytest.mark.parametrize(
    ("fault", "says"), [("401", r"refused.*401 \(the key is read from .*OPENAI_API_KEY"), ("404", "404")]
)
def test_a_refusal_ends_the_work_and_keeps_the_key(
    clips: Mapping[str, bytes], tmp_path: Path, fault: str, says: str
) -> None:
    with seeing(SeeingModel(brightness, faults=[fault])) as url:
        desk = Desk(clips, tmp_path / "log", url=url.replace("//", "//me:password@"))
        with pytest.raises(ModelError, match=says) as refused:
            desk.choose("pair", "12")
    assert KEY not in str(refused.value)
    assert "password" not in str(refused.value)


def test_an_endpoint_that_is_away_is_given_up(clips: Mapping[str, bytes], tmp_path: Path) -> None:
    desk = Desk(clips, tmp_path / "log", url="http://127.0.0.1:9/v1")
    with pytest.raises(ModelError, match=r"no reply from m at 127\.0\.0\.1:9 after 8 attempts"):
        desk.choose("pair", "12")


PRICES = {"price_in": 1.0, "price_out": 20.0}  # 0.002 for 1,000 tokens sent and 50 received


@pytest.mark.parametrize(
    ("limits", "made", "says"),
    [
        ({"budget": 0.024, **PRICES}, 2, "--budget 0.024; 0.0040 is spent"),
        ({"max_tokens": 4200}, 3, "--max_tokens 4,200; 3,150 are used"),
    ],
)
def test_limits_stop_before_they_are_exceeded_also_after_a_restart(
    clips: Mapping[str, bytes], tmp_path: Path, limits: dict[str, Any], made: int, says: str
) -> None:
    model, log = SeeingModel(brightness), tmp_path / "log"
    with seeing(model) as url:
        for _ in range(2):
            desk = Desk(clips, log, url=url, **limits)
            with pytest.raises(LimitReachedError, match=says):
                _ = [desk.choose("pair", "12", lease) for lease in "abcd"]
            assert len(model.requests) == made


def test_an_interrupted_question_goes_on_with_what_was_said(
    clips: Mapping[str, bytes], tmp_path: Path
) -> None:
    model, log = SeeingModel(brightness), tmp_path / "log"
    with seeing(model) as url:
        with pytest.raises(LimitReachedError):
            Desk(clips, log, url=url, max_tokens=2100).choose("pair", "12")
        with log.open("a") as file:
            file.write('{"lease": "b", "rep')  # cut off
        assert Desk(clips, log, url=url).choose("pair", "12") == "right"
    assert len(model.requests) == 2


def test_requests_per_minute(clips: Mapping[str, bytes], tmp_path: Path) -> None:
    now = [0.0]
    with seeing(SeeingModel(brightness)) as url:
        desk = Desk(clips, tmp_path / "log", url=url, per_minute=30)
        desk.endpoint.clock, desk.endpoint.sleep = (
            lambda: now[0],
            lambda seconds: now.append(now.pop() + seconds),
        )
        desk.choose("pair", "12", "a")
        desk.choose("pair", "21", "b")
    assert now == [6.0]


def test_budget_needs_prices() -> None:
    with pytest.raises(ConfigError, match="--budget needs the model's prices"):
        EndpointSettings(url="http://x", model="m", budget=1.0)


def test_a_contact_sheet_shows_the_clip_from_its_first_to_its_last_frame(clips: Mapping[str, bytes]) -> None:
    sheet = np.asarray(contact_sheet(clips["4"], 4, 32), int)
    assert sheet.shape == (2 * (24 + 14), 64, 3)
    middles = [sheet[14 + 12 + 38 * row, 16 + 32 * column].mean() for row in (0, 1) for column in (0, 1)]
    assert middles == pytest.approx([19, 19 * 5, 19 * 8, 190], abs=4)  # the last is held
    assert sheet[:14, :32].min() < 100  # the time above the first frame
    assert contact_sheet(clips["1"], 99, 8).size == (4 * 8, 3 * (6 + 14))
    with pytest.raises(BotError, match="a clip can't be decoded"):
        contact_sheet(b"\0\0\0\x18ftypmp42", 4, 32)


def test_examples_are_shown_with_their_answers(clips: Mapping[str, bytes], tmp_path: Path) -> None:
    model = SeeingModel(brightness)
    example = {"kind": "pair", "items": [], "better": "right", "explanation": "It is brighter."}
    other = {**example, "kind": "rating", "better": "5"}
    with seeing(model) as url:
        desk = Desk(clips, tmp_path / "log", url=url)
        shown = desk.labeler._sheets(lease_of("pair", "1", "2"))
        vars(desk.labeler)["_examples"] = [(example, shown), (other, shown[:1])]
        assert desk.choose("pair", "34") == "right"
        _, pixels = desk.labeler._messages(lease_of("pair", "1", "2"), shown, {"prompt": ""})
    assert pixels == 2 * sum(sheet.pixels for sheet in shown)  # of what is sent, not of the other kind
    content = model.requests[0]["messages"][1]["content"]
    texts = [part["text"] for part in content if part["type"] == "text"]
    assert texts == [
        *("An example:", "Clip left:", "Clip right:", "It is brighter.\nANSWER: right"),
        *("Now label this: Which clip is better?", "Clip left:", "Clip right:"),
    ]


@pytest.mark.parametrize(
    ("model", "name"), [("Qwen/Qwen3-VL:8b", "Qwen-Qwen3-VL-8b"), ("./", "model"), ("x" * 60, "x" * 50)]
)
def test_models_get_names_that_labelers_may_have(model: str, name: str) -> None:
    assert labeler_name(model) == name


def invite(asking: Any, **rights: object) -> str:
    """Make an invitation, and return its link."""
    url = f"{asking.site.url}/api/v1/experiments/{asking.settings.name}/invites"
    headers = {"Authorization": f"Bearer {asking.site.token}"}
    answer = requests.post(url, json={"labeler": "by-link", **rights}, headers=headers, timeout=10)
    return str(answer.json()["invite_url"])


def test_a_model_labels_on_a_site_beside_people(
    start_asking: Any, pairs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start_asking() as asking, seeing(SeeingModel(reacher, frames=4)) as url:
        asking.publish(pairs[:6])
        settings: dict[str, Any] = {"url": url, "model": "m", "frames": 4, "width": 160}
        options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        person = invite(asking)
        for wrong, says in (
            (f"{asking.site.url}/j/1-aaaaaaaaaa", "the site refused the invitation: 404"),
            (
                "http://127.0.0.1:9/j/1-aaaaaaaaaa",
                "no response from the labeling site at http://127.0.0.1:9/;",
            ),
        ):
            assert main([wrong, *options, "--dry_run"]) == 1
            assert says in capsys.readouterr().err
        assert main([person, *options, "--log", str(tmp_path / "missing" / "a")]) == 2
        assert "--log: can't write" in capsys.readouterr().err
        assert main([person, *options, "--log", str(tmp_path / "a")]) == 1
        assert "This invitation is for a person" in capsys.readouterr().err
        link = invite(asking, labeler="m", labeler_kind="model", share=1.0)
        assert main([link, *options[:4], "--dry_run"]) == 0
        shown = capsys.readouterr().out
        assert asking.settings.prompt in shown
        assert "tokens to send and up to 1,000 to receive; each label needs two requests" in shown
        assert main([link, *options, "--max_tokens", "5300", "--log", str(tmp_path / "b")]) == 0
        said = capsys.readouterr().out
        assert "m: 2 labels, 4 requests, 4,200 tokens" in said
        assert "stopped: another request might exceed --max_tokens 5,300" in said
        labeler = ModelLabeler(
            *(asking.site.url, asking.settings.name, asking.site.token),
            *(Endpoint(EndpointSettings(**settings)), tmp_path / "b"),  # it goes on
            share=1.0,
        )
        labeler.start()
        received = asking.receive(6)
        asking.collector.finish()
        labeler.join(60)
        assert labeler.error is None
        right = [each.value == (each.first.true_return > each.second.true_return) for each in received]
        assert sum(right) >= 5
        tables = labeler.exported("comparisons"), labeler.exported("labels")
        assert [*report(*tables, labeler.name)][-1] == (
            "labels saved: 6 of 6 answered questions had no person's answer"
        )


def test_the_report_compares_answers_to_the_same_questions() -> None:
    def label(question: str, who: str, meaning: str, **changes: str) -> dict[str, str]:
        kind = "model" if who in {"m", "n"} else "human"
        row = {"comparison": question, "labeler": who, "meaning": meaning, "labeler_kind": kind}
        return {**row, "status": "counted", "undo": "", **changes}

    comparisons = [{"comparison": each, "kind": "rating" if each == "c" else "pair"} for each in "abcd"]
    labels = [
        label("a", "m", "first"),
        label("a", "ann", "first"),
        label("a", "bob", "second"),
        label("a", "n", "second"),
        label("b", "m", "cant_tell", status="surplus"),
        label("b", "ann", "first"),
        label("b", "bob", "first", undo="u"),
        label("c", "m", "4"),
        label("c", "ann", "4", status="surplus"),
        label("d", "m", "first"),
        label("d", "m", "second", status="repeat"),
    ]
    assert [*report(comparisons, labels, "m")] == [
        "pair: the same answer as people in 1 of 2 (50%); the model or the person couldn't tell in 1 more",
        "rating: the same answer as people in 1 of 1 (100%); the model or the person couldn't tell in 0 more",
        "labels saved: 2 of 4 answered questions had no person's answer",
    ]
