"""Fill our site's database with an experiment, signed-in labelers, and optionally past labels.

``python -m benchmarks.load_rows fill COMPARISONS LABELERS OVERLAP`` prints the labelers' cookies as JSON;
``python -m benchmarks.load_rows check`` prints the state of the comparisons. Both need the site's environment
variables. Rows are copied in SQL from one row created by the models, as millions would take hours over HTTP.
"""

import argparse
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING
from uuid import uuid4

import django
from django.core.management import call_command

if TYPE_CHECKING:
    from django.db.models import Model

    from human_feedback_site.feedback.models import Comparison, Experiment

EXPERIMENT = "load"
HISTORY_OVERLAP = 4
HISTORIC_LABELERS = 200
# Of every ten comparisons with history, seven have four labels, one has two, two have none: three on average.
_LABELS = "CASE WHEN n.i % 10 < 7 THEN 4 WHEN n.i % 10 = 7 THEN 2 ELSE 0 END"


def fill(comparisons: int, labelers: int, overlap: int, *, history: bool, grown: bool = False) -> list[str]:
    """Fill a migrated, empty database and return the labelers' cookies.

    With ``history`` (PostgreSQL only), comparisons have three labels on average, from 200 labelers. Indexes
    are then built after the rows, which is faster. With ``grown`` they grow with the rows, as on a real
    site, so their pages are partly empty.
    """
    from django.contrib.auth.models import User  # noqa: PLC0415 (models need django.setup())

    from human_feedback_site.feedback.models import Experiment, SequenceCounter  # noqa: PLC0415
    from human_feedback_site.feedback.services.accounts import invite, participation_of  # noqa: PLC0415

    owner = User.objects.create(username="ada", is_staff=True)
    experiment = Experiment.objects.create(
        name=EXPERIMENT, owner=owner, run_id=uuid4(), env_id="none", prompt="Which is better?", fps=30,
        has_true_reward=False, overlap=HISTORY_OVERLAP if history else overlap, aggregation="majority",
    )  # fmt: skip
    SequenceCounter.objects.create(experiment=experiment)
    for number in range(max(labelers, HISTORIC_LABELERS) if history else labelers):
        invite(experiment, f"labeler-{number}")
    everybody = list(experiment.labelers.select_related("user").order_by("pk"))
    for labeler in everybody:
        participation_of(labeler, experiment)
    pair = _comparison(experiment)
    if history:
        with nullcontext() if grown else _bare_tables():
            _copy_comparisons(pair, comparisons - 1, _LABELS)
            _judge(pair, everybody[0].pk)
    else:
        _copy_comparisons(pair, comparisons - 1, "0")
    return [_signed_in(labeler.user) for labeler in everybody[:labelers]]


def _signed_in(user: object) -> str:
    from django.conf import settings  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    client = Client()
    client.force_login(user)  # type: ignore[arg-type]
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    return f"{settings.SESSION_COOKIE_NAME}={session}; csrftoken={secrets.token_hex(16)}"


def _comparison(experiment: "Experiment") -> "Comparison":
    from human_feedback_site.feedback.models import Comparison  # noqa: PLC0415

    uuid = uuid4()
    return Comparison.objects.create(
        uuid=uuid, experiment=experiment, phase="training", step=0, priority=0, wanted=experiment.overlap,
        first_key=f"{EXPERIMENT}/{uuid}/first.mp4", second_key=f"{EXPERIMENT}/{uuid}/second.mp4",
    )  # fmt: skip


def _copy_comparisons(pair: "Comparison", count: int, labels: str) -> None:
    changes = {
        "uuid": _new_uuid(),
        "n_labels": labels,
        "status": f"CASE WHEN {labels} < t.wanted THEN 'open' ELSE 'answered' END",
    }
    numbers = f"SELECT 1 AS i UNION ALL SELECT g.i + 1 FROM g WHERE g.i < {count}"  # noqa: S608
    _copy(pair, changes, f"(WITH RECURSIVE g AS ({numbers}) SELECT i FROM g) n")  # noqa: S608


def _judge(pair: "Comparison", first_labeler: int) -> None:
    """Create the leases, labels and decisions that match the comparisons' label counts."""
    from django.db import connection  # noqa: PLC0415

    from human_feedback_site.feedback.models import Decision, Label, Lease  # noqa: PLC0415

    then = "t.created_at - INTERVAL '2 days' + n.id * INTERVAL '10 milliseconds'"
    lease = Lease.objects.create(
        comparison=pair, labeler_id=first_labeler, swapped=False, shown=True, expires_at=pair.created_at
    )
    judges = "(SELECT c.id, j FROM feedback_comparison c, generate_series(1, c.n_labels) AS g(j)) n"
    labeler = f"{first_labeler} + (n.id + 7 * n.j) % {HISTORIC_LABELERS}"
    facts = {"uuid": _new_uuid(), "comparison_id": "n.id", "created_at": then}
    _copy(lease, {**facts, "labeler_id": labeler, "expires_at": then}, judges)
    label = Label.objects.create(
        uuid=uuid4(), lease=lease, comparison=pair, labeler_id=first_labeler, choice="left", swapped=False,
        answer="first", status="surplus",
    )  # fmt: skip
    facts = {"uuid": _new_uuid(), "status": "'counted'", "created_at": "n.created_at"}
    facts |= {"lease_id": "n.id", "comparison_id": "n.comparison_id", "labeler_id": "n.labeler_id"}
    _copy(label, facts, f"(SELECT * FROM feedback_lease WHERE id <> {lease.pk}) n")  # noqa: S608
    decision = Decision.objects.create(
        experiment=pair.experiment, comparison=pair, seq=0, decision="first", probability=1.0, n_labels=1
    )
    facts = {"comparison_id": "n.comparison_id", "seq": "n.id", "created_at": "n.created_at"}
    _copy(decision, facts, f"(SELECT * FROM feedback_label WHERE id <> {label.pk}) n")  # noqa: S608
    with connection.cursor() as cursor:
        newest = "SELECT MAX(seq) FROM feedback_decision"
        cursor.execute(f"UPDATE feedback_sequencecounter SET last_seq = ({newest})")  # noqa: S608
        given = "SELECT labeler_id, COUNT(*) AS labels FROM feedback_label GROUP BY labeler_id"
        cursor.execute(
            f"UPDATE feedback_participation p SET answers = n.labels FROM ({given}) n"  # noqa: S608
            " WHERE n.labeler_id = p.labeler_id"
        )


@contextmanager
def _bare_tables() -> Iterator[None]:
    """Drop indexes and disable foreign-key checks; on exit, rebuild the indexes and run VACUUM ANALYZE."""
    from django.db import connection  # noqa: PLC0415

    unique = (
        "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname), format('ALTER TABLE"
        " %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))"
        " FROM pg_constraint WHERE contype = 'u' AND starts_with(conrelid::regclass::text, 'feedback_')"
    )
    others = (
        "SELECT format('DROP INDEX %I', indexname), indexdef FROM pg_indexes"
        " WHERE starts_with(tablename, 'feedback_') AND indexname NOT IN (SELECT conname FROM pg_constraint)"
    )
    with connection.cursor() as cursor:
        cursor.execute(f"{unique} UNION ALL {others}")
        found = cursor.fetchall()
        cursor.execute("SET session_replication_role = replica")
        for drop, _ in found:
            cursor.execute(drop)
        yield
        for _, make in found:
            cursor.execute(make)
        cursor.execute("VACUUM ANALYZE")


def _new_uuid() -> str:
    from django.db import connection  # noqa: PLC0415

    return "gen_random_uuid()" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"


def _copy(row: "Model", changes: Mapping[str, str], others: str) -> None:
    """Insert a copy of ``row`` for each row of ``others``.

    Args:
        row: the row to copy, ``t`` in SQL expressions.
        changes: SQL expressions by column, for the values that differ.
        others: SQL table expression that ends with the alias ``n``.
    """
    from django.db import connection  # noqa: PLC0415

    columns = [str(field.column) for field in row._meta.concrete_fields if not field.primary_key]
    values = ", ".join(changes.get(column, f"t.{column}") for column in columns)
    table = row._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} "  # noqa: S608
            f"FROM {table} t, {others} WHERE t.id = {row.pk}"
        )


def check() -> dict[str, int]:
    """Count rows and inconsistencies, such as wrong label counts or two labels by the same labeler."""
    from django.db.models import Count, F, Q  # noqa: PLC0415

    from human_feedback_site.feedback.models import Comparison, Decision, Label, Lease  # noqa: PLC0415

    counted = Count("labels", filter=Q(labels__status="counted"))
    judged = Comparison.objects.annotate(counted=counted)
    twice = Label.objects.values("comparison", "labeler").annotate(times=Count("pk")).filter(times__gt=1)
    last = Decision.objects.order_by("-seq").values_list("seq", flat=True).first() or 0
    return {
        "comparisons": Comparison.objects.count(),
        "counted": Label.objects.filter(status="counted").count(),
        "surplus": Label.objects.filter(status="surplus").count(),
        "leases": Lease.objects.count(),
        "with other labels than wanted": judged.exclude(counted=F("wanted")).count(),
        "miscounted": judged.exclude(counted=F("n_labels")).count(),
        "judged twice by a labeler": twice.count(),
        "missing in the feed": last - Decision.objects.count(),
    }


def main() -> None:
    """Fill or check the database, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=["fill", "check"])
    parser.add_argument("comparisons", type=int, nargs="?", default=10_000)
    parser.add_argument("labelers", type=int, nargs="?", default=20)
    parser.add_argument("overlap", type=int, nargs="?", default=1)
    parser.add_argument("--history", action="store_true", help="add past labels (PostgreSQL only)")
    parser.add_argument("--grown", action="store_true", help="keep the indexes while adding past labels")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")
    django.setup()
    if options.what == "check":
        print(json.dumps(check()))
    else:
        call_command("migrate", verbosity=0)
        numbers = (options.comparisons, options.labelers, options.overlap)
        print(json.dumps(fill(*numbers, history=options.history, grown=options.grown)))


if __name__ == "__main__":
    main()
