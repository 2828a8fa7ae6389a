"""A labeler changes an answer: appended, on the same sides, once."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.models import Comparison, Experiment, Label, Lease, Undo
from human_feedback_site.feedback.models.querysets import live_leases
from human_feedback_site.feedback.services.answers import Revision, revise_answer
from tests.site.conftest import Browser, Trainer

pytestmark = pytest.mark.both_databases


def revise(label: Any, choice: str, uuid: UUID | None = None) -> Label:
    old = Label.objects.get(uuid=label["uuid"])
    return revise_answer(old.labeler, Revision(uuid or uuid4(), old.uuid, choice))


def test_the_new_answer_counts_and_the_old_one_stays(
    trainer: Trainer, browser: Browser, stored: Callable[[str], Comparison]
) -> None:
    [uuid] = trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    before = trainer.decisions()["items"][-1]["decision"]
    new = revise(label, "right")
    after = trainer.decisions()["items"][-1]
    assert {before, after["decision"]} == {"first", "second"}
    assert after["n_labels"] == 1
    old = Label.objects.get(uuid=label["uuid"])
    assert (old.choice, old.undo.label_id) == ("left", old.pk)
    assert (new.status, new.swapped, new.comparison_id) == ("counted", old.swapped, old.comparison_id)
    assert stored(uuid).status == Comparison.Status.ANSWERED
    assert not Lease.objects.filter(live_leases()).exists()


def test_it_may_be_sent_again(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label, uuid = browser.answer(browser.lease()[0], "left"), uuid4()
    assert revise(label, "equal", uuid) == revise(label, "equal", uuid)
    assert (Label.objects.count(), Undo.objects.count()) == (2, 1)


def test_the_same_answer_again_is_no_change(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    assert str(revise(label, "left").uuid) == label["uuid"]
    assert (Label.objects.count(), Undo.objects.count()) == (1, 0)


def test_undone_or_changed_answer_cannot_be_changed(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    revise(label, "right")
    for choice in ("left", "equal"):
        with pytest.raises(ConflictError):
            revise(label, choice)
    assert Label.objects.count() == 2


def test_a_finished_experiment_takes_a_change(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    Experiment.objects.update(state="finished")
    assert revise(label, "equal").status == "counted"
    assert trainer.decisions()["items"][-1]["decision"] == "equal"


def test_nobody_changes_the_answer_of_another(trainer: Trainer, invite: Callable[[str], Browser]) -> None:
    trainer.register(2)
    one, other = invite("one"), invite("other")
    label = one.answer(one.lease()[0])
    theirs = Label.objects.get(uuid=other.answer(other.lease()[0])["uuid"])
    with pytest.raises(NotFoundError):
        revise_answer(theirs.labeler, Revision(uuid4(), UUID(label["uuid"]), "right"))
