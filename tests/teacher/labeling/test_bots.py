"""Scripted labelers as a program, and for a wrapper on a real site."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import requests

from teacher import HumanPreferencesEnvWrapper
from teacher.data.segments import Segment
from teacher.labeling.bots import Bot, choose, main
from teacher.labeling.embedded_site import SiteHandle
from teacher.queries.kinds import preferences_in
from teacher.settings.options import RewardConfig
from teacher.settings.teachers import Answerer, ErrorModel
from teacher.wrapper import SiteOptions
from tests.servers import Handler, serving


@pytest.fixture
def token_file(tmp_path: Path, site: SiteHandle) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{site.token}\n")
    return path


def run_bots(*options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "teacher.bots", *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("left", "right", "choice"),
    [(1.0, 0.5, "left"), (-2.0, -1.0, "right"), (3.0, 3.0, "equal"), (None, 1.0, "cant_tell")],
)
def test_the_larger_true_return_is_chosen(left: float | None, right: float, choice: str) -> None:
    """A site of 0.1.0 tells neither kind nor items."""
    truth = {"left": {"true_return": left}, "right": {"true_return": right}, "comparison": "a"}
    assert choose(truth, Answerer(ErrorModel(), seed=0), "bot") == choice
    items = {"kind": "pair", "items": [truth["left"], truth["right"]]}
    assert choose({**truth, **items}, Answerer(ErrorModel(), seed=0), "bot") == choice


@pytest.mark.parametrize(
    ("kind", "returns", "choice", "by_mistake"),
    [
        ("graded", [1.0, 0.5], "clearly_left", "clearly_right"),
        ("graded", [2.0, 2.0], "equal", "equal"),
        ("best_worst", [1.0, 3.0, 0.0, 2.0], "2>3", "3>2"),
        ("best_worst", [1.0, 1.0, 1.0, 1.0], "cant_tell", "cant_tell"),
        ("best_worst", [1.0, None, 1.0, 1.0], "cant_tell", "cant_tell"),
        ("rating", [1.0], "5", "1"),
    ],
)
def test_questions_of_other_kinds_are_answered_in_the_terms_of_the_screen(
    kind: str, returns: list[float | None], choice: str, by_mistake: str
) -> None:
    items = [{"true_return": value} for value in returns]
    truth = {"kind": kind, "items": items, "left": None, "right": None, "comparison": "a"}
    for mistake, expected in ((None, choice), (1.0, by_mistake)):
        seen = [0.0] * 9 if kind == "rating" else []
        answerer = Answerer(ErrorModel(mistake=mistake), seed=0, seen=seen)
        assert choose(truth, answerer, "bot") == expected


def test_bots_wait_for_the_experiment_and_end_with_it(
    start_asking: Any,
    pairs: list[tuple[Segment, Segment]],
    site: SiteHandle,
    token_file: Path,
    experiment: Any,
) -> None:
    log = token_file.with_name("answers")
    bots = run_bots(
        *("--site", site.url, "--experiment", experiment.name, "--token-file", token_file),
        *("--count", 2, "--seconds", 0.3, "--log", log),
    )
    with start_asking() as asking:
        asking.collector.submit(pairs[:6], "training", 100)
        asking.receive(6)
        asking.collector.finish()
    output, _ = bots.communicate(timeout=240)
    assert bots.returncode == 0
    assert [line.split(":")[0] for line in output.splitlines()] == ["bot-1", "bot-2"]
    answers = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(answers) == len({answer["comparison"] for answer in answers}) == 6
    assert all(answer["response_ms"] >= 300 for answer in answers)  # what it took, for the experiment page


@pytest.mark.parametrize(
    ("teacher", "says"),
    [
        ("mistake:2", "expected mistake:NUMBER"),
        ("myopic:0.9", "bots see only returns"),
        ("equal:0.1,collected:200", "bots see only returns"),
        ("teacher.behaviors:backflip", "bots see only returns"),
        ("soft:1", "bots can't use soft, because it answers with a probability"),
    ],
)
def test_a_error_model_that_no_bot_can_have_is_refused(
    teacher: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("t")
    line = f"--site http://127.0.0.1:9 --experiment x --token-file {tmp_path / 'token'} --teacher {teacher}"
    with pytest.raises(SystemExit) as exit_:
        main(line.split())
    said = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said.startswith("bots: --teacher: ")
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("seconds", ["-1", "51", "nan"])
def test_slow_bots_are_refused(seconds: str, token_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"--site http://127.0.0.1:9 --experiment x --token-file {token_file} --seconds {seconds}"
    with pytest.raises(SystemExit):
        main(line.split())
    assert f"--seconds must be between 0 and 50, not {seconds}" in capsys.readouterr().err


def test_no_bots_at_all_are_refused(token_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(f"--site http://127.0.0.1:9 --experiment x --token-file {token_file} --count 0".split())
    assert "--count must be at least 1, not 0" in capsys.readouterr().err


def test_wrong_token_reported(site: SiteHandle, token_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token_file.write_text("tt_wrong…")  # as people shorten it
    line = f"--site {site.url} --experiment x --token-file {token_file} --count 1"
    assert main(line.split()) == 1
    assert "401" in capsys.readouterr().out


class Forgetful(HTTPServer):
    """Passes requests on to a site; loses the reply to the first answer, which the site has by then."""

    def __init__(self, site: str) -> None:
        super().__init__(("127.0.0.1", 0), Forwarder)
        self.site = site
        self.lost = 0


class Forwarder(Handler):
    def forward(self) -> None:
        url = self.server.site + self.path
        headers = dict(self.headers)
        reply = requests.request(
            self.command, url, data=self.body(), headers=headers, allow_redirects=False, timeout=120
        )
        if self.path == "/api/v1/labels" and not self.server.lost:
            self.server.lost += 1
            return
        given = reply.raw.headers
        names = ("Location", "Set-Cookie", "Content-Type")
        self.reply(
            reply.status_code,
            reply.content,
            [(name, value) for name in names for value in given.getlist(name)],
        )

    do_GET = do_POST = forward  # noqa: N815


def test_an_answer_whose_acknowledgement_is_lost_is_sent_again_and_counts_once(
    start_asking: Any, pairs: Any, site: SiteHandle, experiment: Any, tmp_path: Path
) -> None:
    proxy = Forgetful(site.url)
    with serving(proxy) as url, start_asking() as asking:
        bot = Bot(url, experiment.name, site.token, "bot", tmp_path / "log")
        bot.start()
        asking.collector.submit(pairs[:2], "training", 100)
        received = asking.receive(2)
        asking.collector.finish()
        bot.join(240)
    assert (proxy.lost, bot.error, bot.answered) == (1, None, 2)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["counted", "counted"]
    assert {line["comparison"] for line in lines} == {str(preference.uuid) for preference in received}


@pytest.fixture
def signed_out(start_asking: Any, pairs: Any) -> Iterator[tuple[Any, Bot]]:
    """A bot that lost its session after the first answers."""
    with start_asking() as asking:
        asking.collector.submit(pairs[:2], "training", 100)
        (bot,) = asking.bots(1)
        asking.receive(2)
        bot._session.cookies.clear()
        yield asking, bot


def test_a_bot_that_was_signed_out_signs_in_again(signed_out: tuple[Any, Bot], pairs: Any) -> None:
    asking, bot = signed_out
    asking.collector.submit(pairs[2:4], "training", 100)
    asking.receive(2)
    assert bot.error is None


def test_a_bot_agrees_to_the_consent_text(signed_out: tuple[Any, Bot], pairs: Any, site: SiteHandle) -> None:
    asking, bot = signed_out
    with requests.Session() as researcher:
        researcher.get(asking.client.put_experiment(asking.settings).watch_url)
        form = {"text": "We keep your answers.", "csrfmiddlewaretoken": researcher.cookies["csrftoken"]}
        home = f"{site.url}/experiments/{asking.settings.name}"
        assert researcher.post(f"{home}/consent/text", form).ok
    asking.collector.submit(pairs[2:4], "training", 100)
    asking.receive(2)
    assert bot.error is None


def test_a_bot_signs_in_again_if_a_consent_text_was_set_while_it_did(
    signed_out: tuple[Any, Bot], pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, bot = signed_out
    sign_in, signed_in = bot._sign_in, []

    def lose_the_first_session() -> None:
        sign_in()
        signed_in.append(True)
        if len(signed_in) == 1:
            bot._session.cookies.clear()

    monkeypatch.setattr(bot, "_sign_in", lose_the_first_session)
    bot._session.cookies.clear()
    asking.collector.submit(pairs[2:4], "training", 100)
    asking.receive(2)
    assert (len(signed_in) >= 2, bot.error) == (True, None)


class TwoNames(Handler):
    """A finished experiment on a site that calls itself by another name or path; ``shut`` lets nobody in."""

    place: ClassVar[tuple[str, str]]
    shut: ClassVar[bool]
    asked: ClassVar[int]

    def do_GET(self) -> None:
        """Open the invitation: a cookie, and the labeling page."""
        self.reply(200, {}, [("Set-Cookie", f"sessionid=a; Path={self.place[1] or '/'}")])

    def do_POST(self) -> None:
        """Make an invitation, or say that the experiment is finished to those who are signed in."""
        self.body()
        if self.path.endswith("/invites"):
            host, path = self.place
            url = f"http://{host}:{self.server.server_port}{path}/experiments/x/label"
            self.reply(201, {"invite_url": url})
            return
        TwoNames.asked += 1
        if self.shut or "sessionid" not in self.headers.get("Cookie", ""):
            self.reply(401, {"detail": "sign in"})
        else:
            self.reply(200, {"notice": None, "state": "finished", "leases": []})


@pytest.mark.parametrize("shut", [False, True])
@pytest.mark.parametrize(
    "place", [("localhost", ""), ("127.0.0.1", "/teacher"), ("localhost", "/my-experiments/x")], ids=str
)
def test_bot_follows_its_invitation_or_gives_up(place: tuple[str, str], shut: bool) -> None:
    TwoNames.place, TwoNames.shut, TwoNames.asked = place, shut, 0
    with serving(TwoNames) as url:
        bot = Bot(url, "x", "tt_any", "bot-1")
        bot.start()
        bot.join(60)
    assert not bot.is_alive()
    assert ("401" in str(bot.error)) == shut
    assert TwoNames.asked == (4 if shut else 1)


PATIENCE_SECONDS = 240.0


def make() -> gym.Env[np.ndarray, np.ndarray]:
    return gym.make("Pendulum-v1", render_mode="rgb_array")


@pytest.fixture(params=["here", "elsewhere"])
def where(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SiteHandle, SiteOptions]:
    """The site of this machine, and one that is known by its address and token alone."""
    prompt, unused = "Which is more upright?", str(tmp_path / "unused")
    if request.param == "here":
        site: SiteHandle = request.getfixturevalue("site")
        return site, SiteOptions(name="wrapped", prompt=prompt, state_dir=str(site._folder.state_dir))
    request.getfixturevalue("s3_variables")
    site = request.getfixturevalue("s3_site")
    monkeypatch.setenv("TEACHER_TOKEN", site.token)
    return site, SiteOptions(
        name="wrapped", prompt=prompt, site_url=site.url, storage=site.storage, state_dir=unused
    )


@pytest.mark.timeout(500)
def test_rewards_come_from_what_a_labeler_answers(
    where: tuple[SiteHandle, SiteOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, options = where
    env = HumanPreferencesEnvWrapper(
        make(),
        synthetic_prefs=False,
        feedback="best_worst" if options.site_url is None else "pair",
        env_fn=make,
        segment_length=8,
        n_initial_prefs=6,
        n_initial_training_steps=4,
        validation_interval=4,
        reward=RewardConfig(members=2, hidden=16),
        site=options,
        log_dir=tmp_path / "logs",
    )
    assert f"Label and watch here: {env.address}" in capsys.readouterr().out
    bot = Bot(site.url, "wrapped", site.token, "bot")
    bot.start()
    env.reset(seed=1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not env.using_reward_from_predictor:
        assert time.monotonic() < deadline
        _, reward, _, truncated, info = env.step(env.action_space.sample())
        assert reward == 0 or env.using_reward_from_predictor
        if truncated:
            env.reset()
        time.sleep(0.002)  # people are slower than the processor
    _, reward, *_, info = env.step(env.action_space.sample())
    assert reward != info["true_reward"]
    implied = [each for each in preferences_in(env.trainer.learning.ledger) if each.value is not None]
    assert len(implied) >= (30 if options.site_url is None else 6)
    for preference in implied:
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
    env.trainer.learning.collector.finish()
    bot.join(PATIENCE_SECONDS)
    assert bot.error is None
    env.close()
    assert not (tmp_path / "unused").exists()
