"""Overlap of each comparison, gold pairs, repeats, how each labeler does, and scores of comparisons.

Not while the site serves: a lease is over when it is answered, which needs no column of its own any more.
"""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

VOTES = """
    UPDATE feedback_comparison SET score_{outcome} = (
        SELECT COUNT(*) FROM feedback_label a LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE a.comparison_id = feedback_comparison.id AND a.status = 'counted' AND u.id IS NULL AND ({said}))
    WHERE n_labels > 0"""
SAID = {
    'first': "a.choice = 'left' AND NOT a.swapped OR a.choice = 'right' AND a.swapped",
    'equal': "a.choice = 'equal'",
    'second': "a.choice = 'right' AND NOT a.swapped OR a.choice = 'left' AND a.swapped",
}


def take_stock(apps, schema_editor):
    """What was decided by majority stays so; who was given a pair takes part."""
    cursor = schema_editor.connection.cursor()
    cursor.execute("UPDATE feedback_experiment SET aggregation = 'majority'")
    cursor.execute("""
        UPDATE feedback_comparison SET wanted = (
            SELECT e.overlap FROM feedback_experiment e WHERE e.id = feedback_comparison.experiment_id)""")
    for outcome, said in SAID.items():
        cursor.execute(VOTES.format(outcome=outcome, said=said))
    cursor.execute("""
        INSERT INTO feedback_participation
            (labeler_id, experiment_id, answers, undone, gold_checks, watch_checks, created_at)
        SELECT l.labeler_id, c.experiment_id, COUNT(a.id), COUNT(u.id), '', '', CURRENT_TIMESTAMP
        FROM feedback_lease l JOIN feedback_comparison c ON c.id = l.comparison_id
        LEFT JOIN feedback_label a ON a.lease_id = l.id LEFT JOIN feedback_undo u ON u.label_id = a.id
        GROUP BY l.labeler_id, c.experiment_id""")


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0003_beside_the_pairs'),
    ]

    operations = [
        migrations.CreateModel(
            name='Participation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('answers', models.PositiveIntegerField(default=0, help_text='Labels ever given.')),
                ('undone', models.PositiveIntegerField(default=0, help_text='Those of them that were withdrawn.')),
                ('gold_checks', models.CharField(blank=True, default='', help_text='The last answers to pairs with a known answer: 1 right, 0 wrong.', max_length=10)),
                ('watch_checks', models.CharField(blank=True, default='', help_text='The last answers where a time of watching is asked for: 1 watched, 0 too fast.', max_length=10)),
                ('stopped_at', models.DateTimeField(blank=True, help_text='Since then the labeler is given nothing.', null=True)),
                ('confusion', models.JSONField(blank=True, help_text='How often each answer is given (first, equal, second) to each truth, as last estimated.', null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
        ),
        migrations.RemoveIndex(
            model_name='lease',
            name='lease_live',
        ),
        migrations.RemoveIndex(
            model_name='lease',
            name='lease_of_labeler',
        ),
        migrations.RemoveField(
            model_name='lease',
            name='released_at',
        ),
        migrations.AddField(
            model_name='comparison',
            name='gold',
            field=models.CharField(blank=True, choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal')], help_text='The answer that is known; labelers cannot tell.', max_length=10, null=True),
        ),
        migrations.AddField(
            model_name='comparison',
            name='score_equal',
            field=models.FloatField(default=0.0),
        ),
        migrations.AddField(
            model_name='comparison',
            name='score_first',
            field=models.FloatField(default=0.0),
        ),
        migrations.AddField(
            model_name='comparison',
            name='score_second',
            field=models.FloatField(default=0.0),
        ),
        migrations.AddField(
            model_name='comparison',
            name='wanted',
            field=models.PositiveSmallIntegerField(default=1, help_text='Labels that it should have.'),
        ),
        migrations.AddField(
            model_name='experiment',
            name='aggregated_seq',
            field=models.PositiveBigIntegerField(default=0, editable=False, help_text='The newest decision when labelers were last weighed.'),
        ),
        migrations.AddField(
            model_name='experiment',
            name='aggregation',
            field=models.CharField(choices=[('automatic', 'Dawid-Skene where several labelers judge a comparison'), ('majority', 'majority'), ('dawid_skene', 'Dawid-Skene: labelers weigh what they are worth')], default='automatic', max_length=11),
        ),
        migrations.AddField(
            model_name='experiment',
            name='class_prior',
            field=models.JSONField(blank=True, editable=False, help_text='How often first, equal and second are true, as last estimated.', null=True),
        ),
        migrations.AddField(
            model_name='experiment',
            name='gold_rate',
            field=models.FloatField(default=0.0, help_text='Share of pairs whose answer is known already.', validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AddField(
            model_name='experiment',
            name='min_watch_ms',
            field=models.PositiveIntegerField(default=0, help_text='An answer that comes faster is as careless as a wrong one to a known answer.'),
        ),
        migrations.AddField(
            model_name='experiment',
            name='overlap_more',
            field=models.PositiveSmallIntegerField(default=3, help_text='Labelers who judge a share of the comparisons.', validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AddField(
            model_name='experiment',
            name='overlap_share',
            field=models.FloatField(default=0.0, help_text='How large that share is.', validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AddField(
            model_name='experiment',
            name='repeat_rate',
            field=models.FloatField(default=0.0, help_text='Share of pairs that labelers are shown once more, to see whether they say the same.', validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AddField(
            model_name='experiment',
            name='stop_failures',
            field=models.PositiveSmallIntegerField(default=5, help_text="Of a labeler's last 10 checks: after that many failures nothing more is given.", validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AddField(
            model_name='experiment',
            name='warn_failures',
            field=models.PositiveSmallIntegerField(default=3, help_text="Of a labeler's last 10 checks: that many failures are a warning.", validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AddField(
            model_name='lease',
            name='purpose',
            field=models.CharField(choices=[('judge', 'Judge'), ('gold', 'Gold'), ('repeat', 'Repeat')], default='judge', max_length=6),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='status',
            field=models.CharField(choices=[('open', 'Open'), ('answered', 'Answered'), ('cancelled', 'Cancelled'), ('gold', 'Gold')], default='open', max_length=10),
        ),
        migrations.AlterField(
            model_name='label',
            name='status',
            field=models.CharField(choices=[('counted', 'Counted'), ('surplus', 'Surplus'), ('gold', 'Gold'), ('repeat', 'Repeat')], max_length=10),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(fields=['comparison', 'expires_at'], name='lease_of_comparison'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(fields=['labeler', 'expires_at'], name='lease_by_labeler'),
        ),
        migrations.AddField(
            model_name='participation',
            name='experiment',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='participations', to='feedback.experiment'),
        ),
        migrations.AddField(
            model_name='participation',
            name='labeler',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='participations', to='feedback.labeler'),
        ),
        migrations.AddConstraint(
            model_name='participation',
            constraint=models.UniqueConstraint(fields=('labeler', 'experiment'), name='participation_of_labeler'),
        ),
        migrations.RunPython(take_stock, migrations.RunPython.noop),
    ]
