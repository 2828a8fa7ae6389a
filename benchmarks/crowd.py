"""Benchmark of label aggregation: accuracy of Dawid-Skene decisions, and detection of an adversarial labeler.

``python benchmarks/crowd.py`` takes about five minutes on two cores. Ten scripted labelers, two of them
careless and one adversarial, label over HTTP at overlap 3, with attention checks mixed in. Each seed has its
own pairs with a known better clip. Reports how often single labels, the majority of three labels, and the
site's decisions choose the better clip.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))

from teacher.data.decisions import FeedItem
from teacher.labeling.bots import Bot
from teacher.labeling.client import ClipReference, ExperimentSettings, FeedbackClient, Registration
from teacher.settings.teachers import ErrorModel

# Error rate by labeler; the last three are careless or adversarial.
CREW: Mapping[str, float] = {
    "ann": 0.05,
    "bea": 0.08,
    "cid": 0.12,
    "dan": 0.2,
    "eve": 0.25,
    "fay": 0.3,
    "gus": 0.35,
    "careless-1": 0.45,
    "careless-2": 0.5,
    "adversary": 0.95,
}
ADVERSARY = "adversary"
RULES: dict[str, object] = {
    "overlap": 3,
    "aggregation": "dawid_skene",
    "gold_rate": 0.3,
    "warn_failures": 3,
    "stop_failures": 6,
}
COMPARISONS, GOLD, SEEDS = 150, 40, 10
CLIP = b"\x00\x00\x00\x18ftypmp42" + bytes(1000)  # labelers download it but never decode it
_TIMEOUT = 120.0  # seconds without a new label


@dataclass(frozen=True)
class Measured:
    """Results of one seed.

    Attributes:
        single: accuracy of single labels.
        majority: accuracy of the majority vote.
        weighed: accuracy of the site's decisions, made with Dawid-Skene.
        adversary_answers: number of answers the adversary gave.
        adversary_stopped: True if the site stopped the adversary.
        stopped: names of all labelers that the site stopped.
    """

    single: float
    majority: float
    weighed: float
    adversary_answers: int
    adversary_stopped: bool
    stopped: Sequence[str]


@dataclass(frozen=True)
class Site:
    """A running site and functions that access its database.

    Attributes:
        url: base URL.
        token: a researcher's API token.
        media: folder of the clips.
        set_rules: applies ``RULES`` to the named experiment, as a researcher would in the admin.
        labels: returns (comparison UUID, outcome) of all counted labels of the named experiment.
        weigh: updates the labeler weights of the named experiment, which the site does every minute.
    """

    url: str
    token: str
    media: Path
    set_rules: Callable[[str], None]
    labels: Callable[[str], Sequence[tuple[UUID, str]]]
    weigh: Callable[[str], None]


def measure(site: Site, seed: int, comparisons: int = COMPARISONS, gold: int = GOLD) -> Measured:
    """Have the crew label ``comparisons`` pairs mixed with ``gold`` attention checks; return the results."""
    rng = random.Random(seed)
    name = f"crowd-{seed}"
    settings = ExperimentSettings(
        name=name,
        run_id=_uuid(rng),
        env_id="none",
        prompt="Which is better?",
        n_labels=None,
        fps=30,
        has_true_reward=True,
    )
    client = FeedbackClient(site.url, site.token)
    client.put_experiment(settings)
    site.set_rules(name)
    truths: dict[UUID, str] = {}
    pairs = [
        _pair(site.media, name, rng, known=number >= comparisons) for number in range(comparisons + gold)
    ]
    for begin in range(0, len(pairs), 100):
        client.register(name, pairs[begin : begin + 100])
    for pair in pairs[:comparisons]:
        truths[pair.uuid] = _truth(pair)
    bots = [
        Bot(site.url, name, site.token, who, error_model=ErrorModel(mistake=err)) for who, err in CREW.items()
    ]
    for bot in bots:
        bot.start()
    _wait(client, name, bots)
    client.put_experiment(settings, state="finished")
    for bot in bots:
        bot.join()
        if bot.error is not None:
            raise bot.error
    site.weigh(name)
    decisions = {item.comparison: item.decision for item in _feed(client, name)}
    client.close()
    return _measured(truths, site.labels(name), decisions, bots)


def _measured(
    truths: Mapping[UUID, str],
    labels: Sequence[tuple[UUID, str]],
    decisions: Mapping[UUID, str | None],
    bots: Sequence[Bot],
) -> Measured:
    votes: dict[UUID, Counter[str]] = {uuid: Counter() for uuid in truths}
    for uuid, outcome in labels:
        votes[uuid][outcome] += 1
    adversary = next(bot for bot in bots if bot.name == ADVERSARY)
    return Measured(
        single=sum(truths[uuid] == outcome for uuid, outcome in labels) / len(labels),
        majority=sum(votes[uuid].most_common(1)[0][0] == truth for uuid, truth in truths.items())
        / len(truths),
        weighed=sum(decisions.get(uuid) == truth for uuid, truth in truths.items()) / len(truths),
        adversary_answers=adversary.answered,
        adversary_stopped=adversary.stopped,
        stopped=[bot.name for bot in bots if bot.stopped],
    )


def _uuid(rng: random.Random) -> UUID:
    return UUID(int=rng.getrandbits(128), version=4)


def _pair(media: Path, name: str, rng: random.Random, *, known: bool) -> Registration:
    uuid = _uuid(rng)
    clips = [ClipReference(f"{name}/{uuid}/{side}.mp4", rng.random()) for side in ("first", "second")]
    for clip in clips:
        path = media / clip.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CLIP)
    pair = Registration(uuid=uuid, phase="training", step=0, priority=0, items=tuple(clips))
    return replace(pair, gold=_truth(pair)) if known else pair


def _truth(pair: Registration) -> str:
    first, second = (clip.true_return or 0.0 for clip in pair.items)
    return "first" if first > second else "second"


def _wait(client: FeedbackClient, name: str, bots: Sequence[Bot]) -> None:
    """Wait until every pair has its labels; RuntimeError if no label arrives for too long."""
    last, since = -1, time.monotonic()
    while (feed := client.decisions(name, after=0, limit=1)).open:
        if feed.last_seq != last:
            last, since = feed.last_seq, time.monotonic()
        if time.monotonic() - since > _TIMEOUT or not any(bot.is_alive() for bot in bots):
            raise RuntimeError(
                f"{feed.open} pairs are open but no labels arrive; bot errors: {[b.error for b in bots]}"
            )
        time.sleep(0.2)


def _feed(client: FeedbackClient, name: str) -> Iterator[FeedItem]:
    after = 0
    while items := client.decisions(name, after).items:
        yield from items
        after = items[-1].seq


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    """Run a site on SQLite in a thread of this process, with its files in ``folder``."""
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "human_feedback_site.settings",
        "TEACHER_STATE_DIR": str(folder),
    }
    os.environ.pop("DATABASE_URL", None)
    import django  # noqa: PLC0415 (after the environment is set)

    django.setup()
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler  # noqa: PLC0415

    from human_feedback_site.feedback.services.accounts import create_token  # noqa: PLC0415
    from human_feedback_site.wsgi import application  # noqa: PLC0415

    class Handler(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    call_command("migrate", verbosity=0)
    token = create_token(User.objects.create(username="researcher", is_staff=True))
    server = ThreadedWSGIServer(("127.0.0.1", 0), Handler)
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield site_at(f"http://127.0.0.1:{server.server_port}", token, folder / "media")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def site_at(url: str, token: str, media: Path) -> Site:
    """Return a Site whose functions use this process's Django database."""
    from human_feedback_site.feedback.models import Experiment, Label  # noqa: PLC0415
    from human_feedback_site.feedback.services.aggregate import weigh_labelers  # noqa: PLC0415

    def set_rules(name: str) -> None:
        Experiment.objects.filter(name=name).update(**RULES)

    def labels(name: str) -> Sequence[tuple[UUID, str]]:
        found = Label.objects.filter(comparison__experiment__name=name, status="counted", undo=None)
        return [(label.comparison.uuid, str(label.answer)) for label in found.select_related("comparison")]

    def weigh(name: str) -> None:
        weigh_labelers(Experiment.objects.get(name=name))

    return Site(url, token, media, set_rules, labels, weigh)


def report(measured: Sequence[Measured]) -> str:
    """Format a table of all seeds with a summary."""
    lines = [
        "| seed | single labels | majority | Dawid-Skene | adversary's answers | stopped |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {seed} | {each.single:.1%} | {each.majority:.1%} | {each.weighed:.1%} "
        f"| {each.adversary_answers}{'' if each.adversary_stopped else ' (not stopped)'} "
        f"| {', '.join(each.stopped)} |"
        for seed, each in enumerate(measured, start=1)
    ]
    single, majority, weighed = (
        100 * statistics.mean(getattr(each, side) for each in measured)
        for side in ("single", "majority", "weighed")
    )
    longest = max(each.adversary_answers for each in measured)
    lines += [
        "",
        f"Dawid-Skene is right {weighed - single:.1f} points more often than single labels and",
        f"{weighed - majority:.1f} more than the majority ({single:.1f}, {majority:.1f}, {weighed:.1f} %);",
        f"the adversary gave at most {longest} answers.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds and print the report; exit status 1 if an adversary was not stopped."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, running_site(Path(folder)) as site:
        measured = [measure(site, seed, options.comparisons) for seed in range(1, options.seeds + 1)]
    print(report(measured))
    return 0 if all(each.adversary_stopped for each in measured) else 1


if __name__ == "__main__":
    raise SystemExit(main())
