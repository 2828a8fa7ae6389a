"""Whatever labelers, researchers, trainers and time do: no label is lost, doubled, inverted or stranded.

Stories are drawn at random, of three labelers and three pairs and one more whose answer is known, the same
ones each time. ``FUZZ_EXAMPLES=500 pytest tests/site/test_label_machine.py`` draws so many, others each
time, and makes one that fails as short as it can.
"""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.kinds import PAIR
from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Invite,
    InvitePart,
    Label,
    Labeler,
    Lease,
    Participation,
)
from human_feedback_site.feedback.models.querysets import eligible_labels, live_leases
from human_feedback_site.feedback.quality.aggregation import majority
from human_feedback_site.feedback.services import experiments, moderation, parts
from human_feedback_site.feedback.services.answers import Revision, revise_answer
from tests.site import people_at_work as work
from tests.site.conftest import new_invite

pytestmark = [pytest.mark.both_databases, pytest.mark.slow]

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
STEPS = 30  # of a story
ANY = st.integers(0, 1000)  # one of what there is
SAID = st.sampled_from(["first", "second", "equal", "cant_tell"])
PEOPLE = st.integers(0, 2)
EXPERIMENT_STEPS: dict[str, Callable[[Any], int]] = {
    "pause": experiments.pause,
    "resume": experiments.resume,
    "finish": experiments.finish,
    "reopen": experiments.reopen,
}
COMPARISON_STEPS: dict[str, Callable[[Any], int]] = {
    "close": moderation.close,
    "reopen": moderation.reopen,
    "want one more": moderation.request_label,
    "gold": lambda chosen: moderation.make_gold(chosen, "first"),
    "not gold": moderation.make_ordinary,
}


class Story(RuleBasedStateMachine):
    """Model what happens on a site."""

    owner: User
    experiment: Experiment
    labelers: list[Labeler]

    def __init__(self) -> None:
        super().__init__()
        self.begun = transaction.atomic()
        self.begun.__enter__()
        self.pairs: list[Comparison] = []
        self.counted: dict[int, int] = {}
        self.leases: dict[int, list[UUID]] = {number: [] for number in range(3)}
        self.held: dict[int, list[UUID]] = {number: [] for number in range(3)}
        self.labels: dict[int, list[UUID]] = {number: [] for number in range(3)}
        self.meant: dict[UUID, str] = {}

    @initialize(overlap=st.integers(1, 2))
    def begin(self, overlap: int) -> None:
        self.owner = User.objects.create(username="ada", is_staff=True)
        self.experiment, self.pairs, self.labelers = work.begin(self.owner, 4, 3)
        last = Comparison.objects.filter(pk=self.pairs[-1].pk)
        last.update(status="gold", gold="first")
        Experiment.objects.update(gold_rate=0.25, repeat_rate=0.1, stop_failures=1000)
        experiments.set_overlap(self.experiment, overlap)
        self.links: list[Invite | None] = [None, *(new_invite(self.experiment) for _ in range(2))]

    # Labelers

    @rule(who=PEOPLE, count=st.integers(1, 4), reloaded=st.booleans())
    def ask(self, who: int, count: int, reloaded: bool) -> None:
        held = [] if reloaded else self.held[who]
        grant = work.ask(self.labelers[who], self.experiment, count, held)
        new = [offer.uuid for offer in grant.new]
        held_by_all = Counter(
            Lease.objects.filter(live_leases(), purpose="judge")
            .values_list("comparison", flat=True)
            .order_by()
        )
        for offer in grant.new:
            if offer.purpose == Lease.Purpose.JUDGE and offer.uuid not in self.leases[who]:
                row = Comparison.objects.get(pk=offer.comparison_id)
                assert row.n_labels + held_by_all[row.pk] <= row.wanted
        self.held[who] = [*grant.renewed, *new]
        self.leases[who] += [uuid for uuid in new if uuid not in self.leases[who]]

    @rule(who=PEOPLE, which=ANY, outcome=SAID)
    def answer(self, who: int, which: int, outcome: str) -> None:
        if not self.leases[who]:
            return
        lease = self.leases[who][which % len(self.leases[who])]
        self._noted(who, work.answer(self.labelers[who], lease, outcome), outcome)
        self.held[who] = [uuid for uuid in self.held[who] if uuid != lease]

    @rule(who=PEOPLE, outcome=SAID)
    def answer_what_is_on_screen(self, who: int, outcome: str) -> None:
        if self.held[who]:
            lease = self.held[who].pop(0)
            self._noted(who, work.answer(self.labelers[who], lease, outcome), outcome)

    @rule(who=PEOPLE, which=ANY)
    def undo(self, who: int, which: int) -> None:
        if not self.labels[who]:
            return
        label = self.labels[who].pop(which % len(self.labels[who]))
        try:
            lease = work.undo(self.labelers[who], label)
        except ConflictError:  # a researcher withdrew it
            return
        if lease is not None:
            self.leases[who].append(lease.uuid)
            self.held[who].insert(0, lease.uuid)

    @rule(who=PEOPLE, which=ANY, choice=st.sampled_from(list(PAIR.choices)), uuid=st.uuids(version=4))
    def change(self, who: int, which: int, choice: str, uuid: UUID) -> None:
        if not self.labels[who]:
            return
        old = Label.objects.get(uuid=self.labels[who][which % len(self.labels[who])])
        if old.status == Label.Status.VOID or Label.objects.filter(uuid=uuid).exists():
            return
        try:
            new = revise_answer(self.labelers[who], Revision(uuid, old.uuid, choice))
        except ConflictError:
            return
        self.labels[who].remove(old.uuid)
        self._noted(who, new.uuid, new.answer)

    @rule(who=PEOPLE, which=st.integers(0, 2))
    def come_by(self, who: int, which: int) -> None:
        parts.come_by(self.labelers[who], self.experiment, self.links[which])

    def _noted(self, who: int, label: UUID, outcome: str) -> None:
        self.labels[who].append(label)
        self.meant[label] = outcome

    # Time

    @rule(who=PEOPLE)
    def leases_of_a_labeler_expire(self, who: int) -> None:
        work.expire(labeler=self.labelers[who])

    @rule(which=ANY)
    def a_lease_expires(self, which: int) -> None:
        found = list(Lease.objects.filter(live_leases()).order_by("pk"))
        if found:
            work.expire(pk=found[which % len(found)].pk)

    # Researchers and trainers

    @rule(who=PEOPLE, what=st.sampled_from(["stop", "block", "readmit", "readmit", "end claims"]))
    def judge_a_labeler(self, who: int, what: str) -> None:
        chosen = Participation.objects.filter(labeler=self.labelers[who])
        if what == "stop":
            moderation.stop(chosen)
        elif what == "block":
            moderation.block(chosen, self.owner)
        elif what == "readmit":
            moderation.readmit(chosen)
        else:
            moderation.end_claims(Lease.objects.filter(labeler=self.labelers[who]))

    @rule(which=st.integers(0, 3), what=st.sampled_from(sorted(COMPARISON_STEPS)))
    def change_a_pair(self, which: int, what: str) -> None:
        COMPARISON_STEPS[what](Comparison.objects.filter(pk=self.pairs[which].pk))

    @rule(what=st.sampled_from(["resume", *sorted(EXPERIMENT_STEPS)]))
    def change_the_experiment(self, what: str) -> None:
        EXPERIMENT_STEPS[what](Experiment.objects.all())

    @rule(overlap=st.integers(1, 3))
    def change_the_overlap(self, overlap: int) -> None:
        experiments.set_overlap(self.experiment, overlap)

    @rule(which=st.integers(0, 3))
    def cancel(self, which: int) -> None:
        experiments.cancel_comparisons(self.experiment, [self.pairs[which].uuid])

    # What always holds

    @precondition(lambda self: self.pairs)
    @invariant()
    def each_pair_has_what_its_labels_say(self) -> None:
        standing = Counter[tuple[int, int, str]]()
        said: dict[int, list[str]] = {pair.pk: [] for pair in self.pairs}
        for label in work.standing_labels():
            standing[label.comparison_id, label.labeler_id, label.lease.purpose] += 1
            if label.status == Label.Status.COUNTED:
                said[label.comparison_id].append(label.answer)
        assert set(standing.values()) <= {1}
        newest = {row.comparison_id: row for row in Decision.objects.order_by("seq")}
        for row in Comparison.objects.all():
            outcomes = said[row.pk]
            assert row.n_labels == len(outcomes)
            assert row.n_labels <= max(row.wanted, self.counted.get(row.pk, 0))
            self.counted[row.pk] = row.n_labels
            if row.gold is not None:
                continue
            if row.status != Comparison.Status.CANCELLED:
                assert row.status == ("open" if row.n_labels < row.wanted else "answered")
            verdict = majority(row.question, outcomes)
            told = newest.get(row.pk)
            told_as = (told.decision, told.probability, told.n_labels) if told else (None, None, 0)
            assert told_as == (verdict.decision, verdict.probability, verdict.n_labels)
        assert [row.seq for row in Decision.objects.order_by("seq")] == list(
            range(1, Decision.objects.count() + 1)
        )

    @invariant()
    def no_label_that_could_count_is_surplus(self) -> None:
        assert not eligible_labels().filter(comparison__status=Comparison.Status.OPEN).exists()

    @precondition(lambda self: self.pairs)
    @invariant()
    def no_label_is_inverted(self) -> None:
        labels = list(Label.objects.select_related("lease"))
        assert {label.uuid: label.answer for label in labels if label.uuid in self.meant} == self.meant
        assert all(label.swapped == label.lease.swapped for label in labels)

    @precondition(lambda self: self.pairs)
    @invariant()
    def each_part_counts_its_answers(self) -> None:
        given = Counter((label.labeler_id, label.lease.invite_id) for label in work.standing_labels())
        for own in Participation.objects.all():
            of_labeler = {invite: n for (labeler, invite), n in given.items() if labeler == own.labeler_id}
            assert own.answered == sum(of_labeler.values())
            assert own.part_answered == of_labeler.get(own.invite_id, 0)
            for part in InvitePart.objects.filter(participation=own):
                assert part.answered == of_labeler.get(part.invite_id, 0)

    # What holds in the end

    def teardown(self) -> None:
        try:
            if self.pairs:
                self._nothing_is_stranded()
        finally:
            transaction.set_rollback(True)
            self.begun.__exit__(None, None, None)

    def _nothing_is_stranded(self) -> None:
        """Whoever may judge comes again and again; then each open pair has all labels that they can give."""
        Experiment.objects.update(state="running")
        work.expire()
        permitted = [
            own.labeler
            for own in Participation.objects.filter(stopped_at=None).select_related("labeler__user")
        ]
        while given := [
            (person, offer) for person in permitted for offer in work.ask(person, self.experiment).new
        ]:
            for person, offer in given:
                work.answer(person, offer.uuid, "first")
        for row in Comparison.objects.filter(status=Comparison.Status.OPEN):
            counted = row.labels.filter(undo=None, status=Label.Status.COUNTED)
            assert set(counted.values_list("labeler", flat=True)) >= {person.pk for person in permitted}
            assert row.n_labels > 0 or not permitted


def test_whatever_happens_no_label_is_lost_doubled_inverted_or_stranded(db: None) -> None:
    run_state_machine_as_test(
        Story,
        settings=settings(
            max_examples=EXAMPLES or (20 if connection.vendor == "sqlite" else 10),
            stateful_step_count=STEPS,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
