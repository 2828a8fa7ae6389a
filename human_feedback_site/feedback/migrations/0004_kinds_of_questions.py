"""Questions of other kinds than pairs.

Safe while the site serves. Processes of 0.1.0 know only pairs, so none may be left when a run asks others.
"""

import human_feedback_site.feedback.models.comparisons
import human_feedback_site.feedback.models.labels
import django.core.validators
import django.db.models.deletion
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
        migrations.AlterField(
            model_name='example',
            name='practice',
            field=models.BooleanField(default=False, help_text='Ask labelers this before their first question. If unchecked, it is shown with its answer.'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='consent',
            field=models.ForeignKey(blank=True, editable=False, help_text='Consent text that labelers must accept before their first question. Empty: none.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.consenttext'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='gold_rate',
            field=models.FloatField(default=0.0, help_text="Fraction of a labeler's questions, from 0 to 1, that are attention checks.", validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='repeat_rate',
            field=models.FloatField(default=0.0, help_text="Fraction of a labeler's questions, from 0 to 1, shown a second time to test consistency.", validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='stop_failures',
            field=models.PositiveSmallIntegerField(default=5, help_text='Labelers who fail this many of their last 10 checks of a type get no more questions.', validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AlterField(
            model_name='lease',
            name='shown',
            field=models.BooleanField(default=False, help_text='The question has been displayed, not just prefetched.'),
        ),
        migrations.AlterField(
            model_name='participation',
            name='stopped_at',
            field=models.DateTimeField(blank=True, help_text='From this time on, the labeler gets no more questions.', null=True),
        ),
        migrations.AlterField(
            model_name='undo',
            name='lease',
            field=models.ForeignKey(blank=True, help_text='New lease that gave the question back to the labeler, if any.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='feedback.lease'),
        ),
    ]
