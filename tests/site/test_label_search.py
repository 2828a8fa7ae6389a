"""Every state that two labelers and two pairs can come to: nothing has too many labels, nothing is stranded.

The states are those of a model of the rules (``label_model.py``), which is held against the site: ways
through the model are gone on the site, step by step, and both are compared. ``FUZZ_EXAMPLES=2000 pytest
tests/site/test_label_search.py`` goes so many.
"""

import os
from collections.abc import Iterator, Mapping

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from human_feedback_site.feedback.models import Comparison, Decision, Label, Lease, Participation
from human_feedback_site.feedback.models.querysets import live_leases, unanswered_leases
from human_feedback_site.feedback.services import experiments, moderation
from tests.site import label_model as model
from tests.site import people_at_work as work
from tests.site.label_model import LABELERS, PAIRS, Pair, Step, World

WAYS = int(os.environ.get("FUZZ_EXAMPLES", "0")) or 50

Found = Mapping[World, "tuple[World, Step] | None"]


@pytest.fixture(scope="module")
def found() -> Found:
    """All states."""
    return model.search(World())


def test_no_more_labels_count_than_are_wanted_and_no_surplus_could(found: Found) -> None:
    """Check where fewer are wanted than before, there come no more until it holds again."""
    assert len(found) > 3000
    for world in found:
        for step in model.steps(world):
            then = model.after(world, step)
            for before, after in zip(world.pairs, then.pairs, strict=True):
                assert len(after.counted) <= max(after.wanted, len(before.counted)), (world, step)
                assert not after.counted & set(after.surplus), (world, step)
                assert len(after.surplus) == len(set(after.surplus)), (world, step)
                assert not (after.is_open and then.eligible(after)), (world, step)
                if step.what == "ask" and after.live > before.live:
                    assert len(after.counted) + after.live <= after.wanted, (world, step)


def stranded(world: World) -> bool:
    """Return whether somebody who may judge and keeps coming leaves a pair undecided, or a place free."""
    permitted = [labeler for labeler in LABELERS if labeler not in world.blocked]
    for labelers in (permitted, *([each] for each in permitted)):
        then = model.go_on(world, labelers)
        for pair in then.pairs:
            if pair.cancelled or not labelers:
                continue
            if not pair.counted or pair != then.filled(pair):
                return True
            if pair.is_open and not set(labelers) <= pair.counted:
                return True
    return False


def test_from_everywhere_each_open_pair_is_decided_if_a_labeler_keeps_coming(found: Found) -> None:
    assert [world for world in found if stranded(world)] == []


# The site


class Site:
    """The real thing: labeler 0 prefers the first clip of each pair, labeler 1 the second."""

    SAYS = ("first", "second")

    def __init__(self) -> None:
        owner = User.objects.create(username="ada", is_staff=True)
        self.owner = owner
        self.experiment, self.comparisons, self.labelers = work.begin(owner, len(PAIRS), len(LABELERS))

    def do(self, step: Step) -> None:
        match step:
            case Step("ask", int(labeler)):
                work.ask(self.labelers[labeler], self.experiment)
                Lease.objects.update(shown=True)  # nobody takes over what is on a screen
            case Step("answer", int(labeler), int(place)):
                own = Lease.objects.filter(labeler=self.labelers[labeler], comparison=self.comparisons[place])
                work.answer(self.labelers[labeler], own.latest("pk").uuid, self.SAYS[labeler])
            case Step("undo", int(labeler), int(place)):
                standing = self._standing(self.comparisons[place])
                [label] = [each for each in standing if each.labeler == self.labelers[labeler]]
                work.undo(self.labelers[labeler], label.uuid)
            case Step("expire", int(labeler), int(place)):
                work.expire(labeler=self.labelers[labeler], comparison=self.comparisons[place])
            case Step("block", int(labeler)):
                moderation.block(self._participation(labeler), self.owner)
            case Step("readmit", int(labeler)):
                moderation.readmit(self._participation(labeler))
            case Step("close", pair=int(place)):
                moderation.close(Comparison.objects.filter(pk=self.comparisons[place].pk))
            case Step("cancel", pair=int(place)):
                experiments.cancel_comparisons(self.experiment, [self.comparisons[place].uuid])
            case Step("reopen", pair=int(place)):
                moderation.reopen(Comparison.objects.filter(pk=self.comparisons[place].pk))
            case Step("overlap", number=int(number)):
                experiments.set_overlap(self.experiment, number)

    def world(self) -> World:
        """Return what the database holds."""
        participations = (self._participation(labeler).get() for labeler in LABELERS)
        stopped = [labeler for labeler, own in zip(LABELERS, participations, strict=True) if own.stopped_at]
        leases = self._newest_leases()
        rows = (Comparison.objects.get(pk=comparison.pk) for comparison in self.comparisons)
        return World(tuple(self._pair(row, leases) for row in rows), frozenset(stopped))

    def _pair(self, row: Comparison, leases: Mapping[tuple[int, int], model.Lease]) -> Pair:
        counted, surplus = (
            [self.labelers.index(label.labeler) for label in self._standing(row) if label.status == status]
            for status in (Label.Status.COUNTED, Label.Status.SURPLUS)
        )
        pair = Pair(
            wanted=row.wanted,
            cancelled=row.status == Comparison.Status.CANCELLED,
            leases=tuple(leases.get((labeler.pk, row.pk), model.Lease.NONE) for labeler in self.labelers),
            counted=frozenset(counted),
            surplus=tuple(surplus),
        )
        if not pair.cancelled:
            assert row.status == ("open" if pair.is_open else "answered")
        assert row.n_labels == len(counted) == len(pair.counted)
        newest = Decision.objects.filter(comparison=row).order_by("seq").last()
        said = (newest.decision, newest.n_labels) if newest else (None, 0)
        assert said == (self._verdict(pair), len(pair.counted))
        return pair

    def _verdict(self, pair: Pair) -> str | None:
        if len(pair.counted) == 2:
            return "equal"
        return next((self.SAYS[labeler] for labeler in pair.counted), None)

    def _newest_leases(self) -> Mapping[tuple[int, int], model.Lease]:
        unanswered_ones = set(Lease.objects.filter(unanswered_leases()).values_list("pk", flat=True))
        live_ones = set(Lease.objects.filter(live_leases()).values_list("pk", flat=True))
        newest = {}
        for lease in Lease.objects.order_by("pk"):
            state = model.Lease.LIVE if lease.pk in live_ones else model.Lease.EXPIRED
            answered = lease.pk not in unanswered_ones
            newest[lease.labeler_id, lease.comparison_id] = model.Lease.ANSWERED if answered else state
        return newest

    def _standing(self, comparison: Comparison) -> list[Label]:
        return [each for each in work.standing_labels() if each.comparison_id == comparison.pk]

    def _participation(self, labeler: int) -> QuerySet[Participation]:
        return Participation.objects.filter(labeler=self.labelers[labeler])


def way(found: Found, goal: World) -> Iterator[tuple[Step, World]]:
    """Yield the steps from the beginning to a world, by their names there, and the worlds in between."""
    worlds = [goal]
    while (before := found[worlds[-1]]) is not None:
        worlds.append(before[0])
    world = worlds.pop()
    for then in reversed(worlds):
        found_steps = ((step, model.after(world, step)) for step in model.steps(world))
        step, world = next((step, after) for step, after in found_steps if after.canonical() == then)
        yield step, world


@pytest.mark.slow
def test_the_site_goes_the_ways_of_the_model(found: Found, db: None) -> None:
    site = Site()
    worlds = list(found)
    goals = worlds[:: max(1, len(worlds) // WAYS)]
    tried = set()
    for goal in goals:
        with transaction.atomic():
            gone, world = [], World()
            for step, world in way(found, goal):
                site.do(step)
                gone.append(step)
                assert site.world() == world, gone
                tried.add(step.what)
            transaction.set_rollback(True)
    assert tried == {
        "ask",
        "answer",
        "undo",
        "expire",
        "block",
        "readmit",
        "close",
        "cancel",
        "reopen",
        "overlap",
    }
