"""A labeler's count and code belong to the invitation by which it came; one participant may come by several.

The present invitation has what was counted so far. Safe while the site serves: processes of the version before
count all answers for the present invitation.
"""

import django.db.models.deletion
from django.db import migrations, models


def note_answers(apps, schema_editor):
    """What was complete stays so until an answer is taken back."""
    participations = apps.get_model('feedback', 'Participation').objects.using(schema_editor.connection.alias)
    participations.exclude(completed_at=None).update(completed_answers=models.F('answers') - models.F('undone'))


def keep_first_arrivals(apps, schema_editor):
    """The version before knows one of each participant."""
    arrivals = apps.get_model('feedback', 'Arrival').objects.using(schema_editor.connection.alias)
    seen = set()
    for arrival in arrivals.order_by('pk'):
        person = arrival.experiment_id, arrival.participant
        if person in seen:
            arrival.delete()
        seen.add(person)


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0014_waiting_labels'),
    ]

    operations = [
        migrations.CreateModel(
            name='InvitePart',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('answered', models.IntegerField(default=0, help_text='Answers that stand.')),
                ('completed_at', models.DateTimeField(blank=True, help_text='When the labeler was told that this part is done.', null=True)),
                ('completed_answers', models.PositiveIntegerField(blank=True, help_text='Answers that stood then; with fewer the part is not done any more.', null=True)),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='arrival',
            name='arrival_of_participant',
        ),
        migrations.RunPython(migrations.RunPython.noop, keep_first_arrivals),
        migrations.AddField(
            model_name='lease',
            name='invite',
            field=models.ForeignKey(blank=True, db_index=False, help_text='Of the request that brought it, or renewed it last: its answer belongs to that part.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.invite'),
        ),
        migrations.AddField(
            model_name='participation',
            name='completed_answers',
            field=models.PositiveIntegerField(blank=True, editable=False, help_text='Answers that stood then; with fewer the part is not done any more.', null=True),
        ),
        migrations.AddField(
            model_name='participation',
            name='elsewhere',
            field=models.IntegerField(blank=True, editable=False, help_text='Answers that stand for other invitations; empty: the labeler came by no other.', null=True),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(condition=models.Q(('invite__isnull', False)), fields=['invite'], name='lease_of_invite'),
        ),
        migrations.AddConstraint(
            model_name='arrival',
            constraint=models.UniqueConstraint(fields=('invite', 'participant'), name='arrival_by_invite'),
        ),
        migrations.AddField(
            model_name='invitepart',
            name='invite',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='feedback.invite'),
        ),
        migrations.AddField(
            model_name='invitepart',
            name='participation',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='feedback.participation'),
        ),
        migrations.AddConstraint(
            model_name='invitepart',
            constraint=models.UniqueConstraint(fields=('participation', 'invite'), name='part_of_invite'),
        ),
        migrations.RunPython(note_answers, migrations.RunPython.noop),
    ]
