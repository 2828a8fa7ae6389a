"""Questions of other kinds than pairs.

Safe while the site serves. Processes of 0.1.0 know only pairs, so none may be left when a run asks others.
"""

import human_feedback_site.feedback.models.comparisons
import human_feedback_site.feedback.models.labels
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0003_label_answer'),
    ]

    operations = [
        migrations.AddField(
            model_name='comparison',
            name='fourth_key',
            field=models.CharField(blank=True, db_default='', default='', max_length=300),
        ),
        migrations.AddField(
            model_name='comparison',
            name='fourth_return',
            field=models.FloatField(blank=True, null=True, verbose_name='true return of the fourth clip'),
        ),
        migrations.AddField(
            model_name='comparison',
            name='kind',
            field=models.CharField(choices=human_feedback_site.feedback.models.comparisons.kind_choices, db_default='pair', default='pair', max_length=10),
        ),
        migrations.AddField(
            model_name='comparison',
            name='third_key',
            field=models.CharField(blank=True, db_default='', default='', max_length=300),
        ),
        migrations.AddField(
            model_name='comparison',
            name='third_return',
            field=models.FloatField(blank=True, null=True, verbose_name='true return of the third clip'),
        ),
        migrations.AddField(
            model_name='experiment',
            name='compares_kinds',
            field=models.BooleanField(db_default=False, default=False, help_text="Each labeler gets blocks of ten questions of one kind. The experiment's page compares the kinds."),
        ),
        migrations.AddField(
            model_name='experiment',
            name='highest_rating',
            field=models.CharField(blank=True, db_default='', default='', help_text='What labelers read beside rating 5. Empty: "best".', max_length=40),
        ),
        migrations.AddField(
            model_name='experiment',
            name='lowest_rating',
            field=models.CharField(blank=True, db_default='', default='', help_text='What labelers read beside rating 1. Empty: "worst".', max_length=40),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='gold',
            field=models.CharField(blank=True, choices=human_feedback_site.feedback.models.comparisons.answer_choices, help_text="Known answer, if this is an attention check. Labelers can't tell that it is one.", max_length=20, null=True),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='second_key',
            field=models.CharField(blank=True, max_length=300),
        ),
        # Made again, so that PostgreSQL's definition is that of a new database.
        migrations.RemoveIndex(model_name='decision', name='decision_seldom'),
        migrations.AlterField(
            model_name='decision',
            name='decision',
            field=models.CharField(blank=True, choices=human_feedback_site.feedback.models.comparisons.answer_choices, help_text="Empty if all of the comparison's labels were withdrawn.", max_length=20, null=True),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(condition=models.Q(('decision__in', ('equal', 'cant_tell'))), fields=['experiment', 'decision', 'comparison'], name='decision_seldom'),
        ),
        migrations.AlterField(
            model_name='decision',
            name='probability',
            field=models.FloatField(blank=True, help_text='Probability that the first of two clips is preferred.', null=True),
        ),
        migrations.AlterField(
            model_name='example',
            name='better',
            field=models.CharField(choices=human_feedback_site.feedback.models.comparisons.answer_choices, help_text='Correct answer.', max_length=20),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='class_prior',
            field=models.JSONField(blank=True, editable=False, help_text='Latest estimate of how often each answer is true: for pairs first, equal and second.', null=True),
        ),
        migrations.AlterField(
            model_name='label',
            name='answer',
            field=models.CharField(choices=human_feedback_site.feedback.models.comparisons.answer_choices, db_default='', help_text='Meaning of the choice. Processes of 0.1.0 leave it empty.', max_length=20),
        ),
        migrations.AlterField(
            model_name='label',
            name='choice',
            field=models.CharField(choices=human_feedback_site.feedback.models.labels.choice_choices, max_length=20),
        ),
        migrations.AlterField(
            model_name='label',
            name='shown_ms',
            field=models.PositiveIntegerField(blank=True, help_text='Time in milliseconds that all clips were visible, as reported by the browser.', null=True),
        ),
        migrations.AlterField(
            model_name='label',
            name='swapped',
            field=models.BooleanField(help_text='The clips were shown in reverse order.'),
        ),
        migrations.AlterField(
            model_name='lease',
            name='swapped',
            field=models.BooleanField(help_text='The clips are shown in reverse order.'),
        ),
        migrations.AlterField(
            model_name='participation',
            name='confusion',
            field=models.JSONField(blank=True, help_text='Estimated confusion matrix: true answers as rows, given answers as columns. If there are questions other than pairs, an object with the matrix of each kind.', null=True),
        ),
    ]
