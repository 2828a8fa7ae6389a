"""Labeling page, the history where labelers review and change their answers, and the page at the end."""

import uuid
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.kinds import KINDS
from human_feedback_site.feedback.models import Experiment, Label, Labeler, Participation
from human_feedback_site.feedback.pages.views import (
    account_key,
    acts,
    managed_by,
    message,
    sender_data,
    shows,
    signed_in,
)
from human_feedback_site.feedback.selectors import labeling
from human_feedback_site.feedback.selectors.labeling import before_after
from human_feedback_site.feedback.services import accounts, parts
from human_feedback_site.feedback.services.answers import Revision, revise_answer
from human_feedback_site.feedback.services.wording import text_to_answer

ANSWERS_PER_PAGE = 20
# Modules that label.js imports, listed so that browsers fetch them in parallel.
MODULES = [
    f"feedback/js/{name}.js"
    for name in (
        *("dom", "media", "patience"),
        *("labeling/api", "labeling/beside", "labeling/controls", "labeling/downloads", "labeling/emitter"),
        *("labeling/kept", "labeling/key_editor", "labeling/keys", "labeling/kinds", "labeling/lessons"),
        *("labeling/news", "labeling/notices", "labeling/outbox", "labeling/pace", "labeling/player"),
        *("labeling/prefetch", "labeling/presence", "labeling/recent", "labeling/screen"),
        "labeling/transport",
    )
]
# Grammatical forms that the script chooses from, with a number that has each form.
_FORMS = {"one": 1, "other": 2}


@shows
@ensure_csrf_cookie
def label(request: HttpRequest, name: str) -> HttpResponse:
    """Show the labeling page, whose script gets questions and sends answers through the REST API."""
    labeler, experiment = labeler_in(request, name)
    if text_to_answer(labeler, experiment) is not None:
        return redirect("consent", name)
    page = _script_data(accounts.participation_of(labeler, experiment))
    context = {
        "experiment": experiment,
        "labeler": labeler,
        "may_manage": managed_by(request).filter(pk=experiment.pk).exists(),
        "page": page,
        "modules": MODULES,
        "kinds": [
            {"name": name, "template": f"pages/kinds/{name}.html", "texts": kind.texts}
            for name, kind in KINDS.items()
        ],
        "kinds_of_two": " ".join(name for name, kind in KINDS.items() if kind.size == 2),
        "other_kinds": " ".join(name for name, kind in KINDS.items() if kind.size != 2),
        "size": KINDS[page["kind"]].size,
        "places": range(1, max(kind.size for kind in KINDS.values()) + 1),
        "login_url": f"{reverse('login')}?{urlencode({'next': request.path})}",
    }
    return render(request, "pages/label.html", context)


def _script_data(participation: Participation) -> dict[str, Any]:
    labeler, experiment = participation.labeler, participation.experiment
    return {
        "experiment": experiment.name,
        "account": account_key(labeler.user),
        "answered": participation.part_answered,
        "wanted": participation.invite.answers_wanted if participation.invite else None,
        "recent": [str(each) for each in labeling.recent_answers(labeler, experiment)],
        "fps": experiment.fps,
        "kind": labeling.newest_kind(experiment),
        "lessons": experiment.examples.aggregate(
            shown=Count("pk", filter=Q(practice=False)), practice=Count("pk", filter=Q(practice=True))
        ),
        "csrf_cookie": settings.CSRF_COOKIE_NAME,
        "urls": {
            "leases": reverse("api-leases", args=[experiment.name]),
            "examples": reverse("api-examples", args=[experiment.name]),
            "progress": reverse("api-progress", args=[experiment.name]),
            "episodes": reverse("episode", args=[experiment.name, 0]).removesuffix("/0"),
            "labels": reverse("api-labels"),
            "session": reverse("session"),
            "history": reverse("history", args=[experiment.name]),
            "done": reverse("done", args=[experiment.name]),
        },
        "messages": _messages(),
    }


def _messages() -> dict[str, Any]:
    return {
        "answer_refused": _("The site rejected an answer:"),
        "answer_stuck": _("An answer couldn’t be sent and will be retried later:"),
        "answers": {
            form: ngettext("{count} answer", "{count} answers", number) for form, number in _FORMS.items()
        },
        "choices": {
            **{choice: text for kind in KINDS.values() for choice, text in kind.choices.items()},
            **{choice: text for kind in KINDS.values() for choice, text in kind.sentences.items()},
            "undo": _("Undo"),
        },
        "choices_narrow": {
            choice: text for kind in KINDS.values() for choice, text in kind.stacked_sentences.items()
        },
        "clip": _("Clip %(number)s") % {"number": "{number}"},
        "clips_away": _("The clips can’t be loaded; trying again."),
        "close_answer": _("Close. Our answer:"),
        "key_changed": _("The new key is {key}."),
        "key_hint": _("To change a key, choose it here, then press the new one."),
        "key_refused": _("That key can’t be used. Press another one, or Esc to cancel."),
        "key_wanted": _("Press the new key, or Esc to cancel."),
        "keys_reset": _("All keys have been reset."),
        "keys_swapped": _("The keys {key} and {other} have been swapped."),
        "left": {
            form: ngettext("{progress}, about {count} minute", "{progress}, about {count} minutes", number)
            for form, number in _FORMS.items()
        },
        "nothing_to_undo": _("There is no answer to undo."),
        "notice": _("New clips are waiting for you"),
        "notices_blocked": _("This browser blocks notifications from this site."),
        "other_answer": _("Our answer:"),
        "everyone": _("Everyone: {progress}"),
        "of_all": _("{answered} of {wanted} answers"),
        "of_start": _("{answered} of {wanted} answers before training starts"),
        "of_yours": _("You: {answered} of {wanted} answers"),
        "practice_done": _("Practice is over. From now on, your answers count."),
        "right_answer": _("Yes, we agree."),
        "slow_minutes": _("Slow connection: about {minutes} min"),
        "slow_seconds": _("Slow connection: about {seconds} s"),
        "space": _("Space"),
        "step": _("Step {step}"),
        "still_away": _("The site still can’t be reached."),
        "taught": {
            form: ngettext(
                "What {count} answer has taught the agent",
                "What {count} answers have taught the agent",
                number,
            )
            for form, number in _FORMS.items()
        },
        "undo_later": _("The answer will be undone when the site is back."),
        "undo_refused": _("The answer couldn’t be undone:"),
        "undone_closed": _("The answer was undone."),
    }


@shows
def history(request: HttpRequest, name: str) -> HttpResponse:
    """List the labeler's answers, except undone ones, newest first, with buttons to change them."""
    labeler, experiment = labeler_in(request, name)
    answers = labeling.answers_of(labeler, experiment).select_related("comparison__experiment")
    page = Paginator(answers, ANSWERS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "experiment": experiment,
        "page": page,
        "rows": [_history_row(each) for each in page],
        "unsaved": sender_data(labeler.user),
    }
    return render(request, "pages/history.html", context)


def _history_row(label: Label) -> dict[str, Any]:
    kind = label.comparison.question
    best = kind.best_of(label.choice)
    return {
        "label": label,
        "next_uuid": uuid.uuid4(),  # becomes the new label's if the answer is changed
        "places": [(place + 1, place == best) for place in range(kind.size)],
        "choices": kind.buttons,
    }


@acts
def change(request: HttpRequest, name: str, label_uuid: uuid.UUID) -> HttpResponse:
    """Replace an answer from the history with a different one."""
    labeler, _experiment = labeler_in(request, name)
    old = Label.objects.select_related("comparison").filter(uuid=label_uuid, labeler=labeler).first()
    choice = request.POST.get("choice", "")
    try:
        revision = Revision(uuid.UUID(request.POST["uuid"]), label_uuid, choice)
    except (KeyError, ValueError):
        return message(request, 400, _("That isn’t a valid answer"), _("Go back and try again."))
    if old is not None and choice not in old.comparison.question.choices:
        return message(request, 400, _("That isn’t a valid answer"), _("Go back and try again."))
    try:
        answer = revise_answer(labeler, revision)
    except NotFoundError as error:
        raise Http404 from error
    except ConflictError:
        heading, text = _("This answer was already changed elsewhere"), _("Go back and reload the page.")
        return message(request, 409, heading, text)
    page = urlencode({"page": request.POST.get("page", "1")})
    return redirect(f"{reverse('history', args=[name])}?{page}#{answer.uuid}")


@require_safe
@never_cache
@ensure_csrf_cookie
def session(request: HttpRequest) -> JsonResponse:
    """Return the user's :func:`account_key` as JSON (null if signed out), and set the CSRF cookie."""
    user = request.user
    return JsonResponse({"account": None if isinstance(user, AnonymousUser) else account_key(user)})


def labeler_in(request: HttpRequest, name: str) -> tuple[Labeler, Experiment]:
    """Return the user's ``Labeler`` and the experiment, or raise ``Http404`` if the user may not label it."""
    experiment = get_object_or_404(Experiment, name=name)
    try:
        return accounts.labeler_for(signed_in(request), experiment), experiment
    except NotFoundError as error:
        raise Http404 from error


@shows
def done(request: HttpRequest, name: str) -> HttpResponse:
    """Show the labeler's status, any code for the platform, and videos of the agent."""
    labeler, experiment = labeler_in(request, name)
    ending = parts.conclude(accounts.participation_of(labeler, experiment))
    context = {
        "experiment": experiment,
        "ending": ending,
        "change": before_after(labeler.user, [experiment]).get(experiment.pk),
        "unsaved": sender_data(labeler.user),
    }
    return render(request, "pages/done.html", context)
