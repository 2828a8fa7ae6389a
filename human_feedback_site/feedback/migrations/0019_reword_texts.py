"""Reword help texts, verbose names, choice labels and validator messages.

Contains no SQL, so it is safe while the site serves.
"""

import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class AlterTogether(migrations.SeparateDatabaseAndState):
    """Alters fields in the state only, and lets Django render the models once instead of after each field."""

    def state_forwards(self, app_label, state):
        """Change the fields, and drop the rendered models, which Django renders again when it needs them."""
        state.__dict__.pop('apps', None)
        super().state_forwards(app_label, state)


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0018_clips_missing'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    reworded = [
        migrations.AlterField(
            model_name='apitoken',
            name='experiment',
            field=models.CharField(blank=True, db_default='', default='', help_text='Name of the only experiment that the token can access, which need not exist yet. Empty: all experiments of the user.', max_length=100, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,100}\\Z', 'Use 1 to 100 letters, digits, underscores and hyphens.', code='invalid_name')]),
        ),
        migrations.AlterField(
            model_name='apitoken',
            name='expires_at',
            field=models.DateTimeField(blank=True, help_text='The token stops working at this time. Empty: it never expires.', null=True),
        ),
        migrations.AlterField(
            model_name='apitoken',
            name='name',
            field=models.CharField(default='trainer', help_text='What the token is used for.', max_length=100),
        ),
        migrations.AlterField(
            model_name='attempts',
            name='ends_at',
            field=models.DateTimeField(help_text='End of the time window. The next attempt restarts the count.'),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='clips_missing',
            field=models.BooleanField(db_default=False, editable=False, help_text='The comparison was imported, but its clips were not in the media store.'),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='first_return',
            field=models.FloatField(blank=True, null=True, verbose_name='true return of the first clip'),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='gold',
            field=models.CharField(blank=True, choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal')], help_text="Known answer, if this is an attention check. Labelers can't tell that it is one.", max_length=10, null=True),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='n_labels',
            field=models.PositiveSmallIntegerField(default=0, help_text='Number of counted labels. Updated only while the row is locked.'),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='priority',
            field=models.IntegerField(help_text='Comparisons with a higher priority are shown first.'),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='second_return',
            field=models.FloatField(blank=True, null=True, verbose_name='true return of the second clip'),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='step',
            field=models.PositiveBigIntegerField(help_text='Total environment steps taken when the comparison was requested.'),
        ),
        migrations.AlterField(
            model_name='comparison',
            name='wanted',
            field=models.PositiveSmallIntegerField(default=1, help_text='Number of labels requested.'),
        ),
        migrations.AlterField(
            model_name='consenttext',
            name='digest',
            field=models.CharField(help_text='SHA-256 hash of the text, in hexadecimal.', max_length=64),
        ),
        migrations.AlterField(
            model_name='decision',
            name='decision',
            field=models.CharField(blank=True, choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal'), ('cant_tell', "Can't tell")], help_text="Empty if all of the comparison's labels were withdrawn.", max_length=10, null=True),
        ),
        migrations.AlterField(
            model_name='decision',
            name='probability',
            field=models.FloatField(blank=True, help_text='Probability that the first clip is preferred.', null=True),
        ),
        migrations.AlterField(
            model_name='episode',
            name='step',
            field=models.PositiveBigIntegerField(help_text='Total environment steps taken when the episode ended.'),
        ),
        migrations.AlterField(
            model_name='example',
            name='better',
            field=models.CharField(choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal'), ('cant_tell', "Can't tell")], help_text='Correct answer.', max_length=10),
        ),
        migrations.AlterField(
            model_name='example',
            name='comparison',
            field=models.ForeignKey(help_text='Comparison whose clips are shown.', on_delete=django.db.models.deletion.CASCADE, related_name='+', to='feedback.comparison'),
        ),
        migrations.AlterField(
            model_name='example',
            name='explanation',
            field=models.TextField(blank=True, help_text='Reason for the answer, shown to labelers.', max_length=500),
        ),
        migrations.AlterField(
            model_name='example',
            name='practice',
            field=models.BooleanField(default=False, help_text='Ask labelers this before their first pair. If unchecked, it is shown with its answer.'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='aggregated_seq',
            field=models.PositiveBigIntegerField(default=0, editable=False, help_text="Sequence number of the newest decision when labelers' accuracy was last estimated."),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='aggregation',
            field=models.CharField(choices=[('automatic', 'Dawid-Skene if comparisons have several labelers, otherwise majority vote'), ('majority', 'majority vote'), ('dawid_skene', 'Dawid-Skene: labels weighted by estimated labeler accuracy')], default='automatic', max_length=11),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='class_prior',
            field=models.JSONField(blank=True, editable=False, help_text='Latest estimate of how often the true answer is first, equal and second.', null=True),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='consent',
            field=models.ForeignKey(blank=True, editable=False, help_text='Consent text that labelers must accept before their first pair. Empty: none is needed.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.consenttext'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='deletion_asked_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='From this time on, the experiment is hidden while its rows and clips are deleted.', null=True, verbose_name='deletion requested at'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='gold_rate',
            field=models.FloatField(default=0.0, help_text="Fraction of a labeler's pairs, from 0 to 1, that are attention checks.", validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='media_deleted_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='Clips of all comparisons created before this time have been deleted.', null=True),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='min_watch_ms',
            field=models.PositiveIntegerField(default=0, help_text='Minimum watch time in milliseconds. Faster answers count as failed attention checks.'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='n_labels',
            field=models.PositiveIntegerField(blank=True, help_text='Total number of labels requested. Empty: no limit.', null=True),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='overlap',
            field=models.PositiveSmallIntegerField(default=1, help_text='Number of labelers who judge each comparison.', validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='overlap_more',
            field=models.PositiveSmallIntegerField(default=3, help_text='Number of labelers for comparisons in the "overlap share".', validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='overlap_share',
            field=models.FloatField(default=0.0, help_text='Fraction of comparisons, from 0 to 1, that use "overlap more" instead of "overlap".', validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='pretrain_labels',
            field=models.PositiveIntegerField(blank=True, help_text="Number of answers needed before training starts. Empty: training doesn't wait.", null=True),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='prompt',
            field=models.TextField(help_text='Instruction shown to labelers.'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='prompt_version',
            field=models.PositiveIntegerField(db_default=1, default=1, editable=False, help_text='Version number of the current prompt.'),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='repeat_rate',
            field=models.FloatField(default=0.0, help_text="Fraction of a labeler's pairs, from 0 to 1, shown a second time to test consistency.", validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='run_id',
            field=models.UUIDField(help_text="ID of the training run. A different run can't use the experiment's name."),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='stop_failures',
            field=models.PositiveSmallIntegerField(default=5, help_text='Labelers who fail this many of their last 10 checks of the same type get no more pairs.', validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='trainer_seen_at',
            field=models.DateTimeField(blank=True, editable=False, help_text="Approximate time of the trainer's last request.", null=True),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='waiting_for',
            field=models.PositiveIntegerField(blank=True, help_text="Number of answers that training is waiting for. Empty: training isn't waiting.", null=True),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='warn_failures',
            field=models.PositiveSmallIntegerField(default=3, help_text='Labelers who fail this many of their last 10 checks of the same type are warned.', validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AlterField(
            model_name='invite',
            name='answers_wanted',
            field=models.PositiveIntegerField(blank=True, help_text='Number of answers requested from each labeler. Empty: no limit.', null=True, validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AlterField(
            model_name='invite',
            name='completion_code',
            field=models.CharField(blank=True, help_text='Shown to labelers who complete the task.', max_length=40, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,40}\\Z', 'Use 1 to 40 letters, digits, underscores and hyphens.')]),
        ),
        migrations.AlterField(
            model_name='invite',
            name='kind',
            field=models.CharField(choices=[('named', 'one named labeler'), ('anonymous', 'a new labeler with a pseudonym for each sign-in')], max_length=9),
        ),
        migrations.AlterField(
            model_name='invite',
            name='labeler',
            field=models.ForeignKey(blank=True, help_text='Labeler who signs in with a named invitation.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='invites', to='feedback.labeler'),
        ),
        migrations.AlterField(
            model_name='invite',
            name='limit',
            field=models.PositiveIntegerField(blank=True, help_text='Maximum number of sign-ins. Empty: no limit.', null=True, validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AlterField(
            model_name='invite',
            name='note',
            field=models.CharField(blank=True, help_text='Purpose of the invitation. Labelers never see it.', max_length=100),
        ),
        migrations.AlterField(
            model_name='invite',
            name='return_url',
            field=models.CharField(blank=True, help_text='URL that labelers return to. The code is added as the query parameter cc.', max_length=200, validators=[django.core.validators.URLValidator(schemes=['https'])]),
        ),
        migrations.AlterField(
            model_name='invite',
            name='screen_out_code',
            field=models.CharField(blank=True, help_text='Shown to labelers who are stopped after failing attention checks.', max_length=40, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,40}\\Z', 'Use 1 to 40 letters, digits, underscores and hyphens.')]),
        ),
        migrations.AlterField(
            model_name='invite',
            name='study',
            field=models.CharField(blank=True, help_text='Study ID on the platform. Participants of other studies are refused. Empty: any study.', max_length=24, validators=[django.core.validators.RegexValidator('\\A[0-9a-f]{24}\\Z', 'Enter the 24-character study ID (digits and letters a to f).')]),
        ),
        migrations.AlterField(
            model_name='invite',
            name='uses',
            field=models.PositiveIntegerField(default=0, help_text='Number of sign-ins so far.'),
        ),
        migrations.AlterField(
            model_name='invitepart',
            name='answered',
            field=models.IntegerField(default=0, help_text='Number of valid answers under this invitation.'),
        ),
        migrations.AlterField(
            model_name='invitepart',
            name='completed_answers',
            field=models.PositiveIntegerField(blank=True, help_text='Number of valid answers at completion. With fewer, the task is no longer complete.', null=True),
        ),
        migrations.AlterField(
            model_name='invitepart',
            name='completed_at',
            field=models.DateTimeField(blank=True, help_text='When the labeler was told that the task is complete.', null=True),
        ),
        migrations.AlterField(
            model_name='label',
            name='choice',
            field=models.CharField(choices=[('left', 'Left'), ('right', 'Right'), ('equal', 'Equal'), ('cant_tell', "Can't tell")], max_length=10),
        ),
        migrations.AlterField(
            model_name='label',
            name='prompt_version',
            field=models.PositiveIntegerField(db_default=1, default=1, help_text='Version of the prompt that the labeler answered.'),
        ),
        migrations.AlterField(
            model_name='label',
            name='shown_ms',
            field=models.PositiveIntegerField(blank=True, help_text='Time in milliseconds that both clips were visible, as reported by the browser.', null=True),
        ),
        migrations.AlterField(
            model_name='label',
            name='swapped',
            field=models.BooleanField(help_text='The second clip was shown on the left.'),
        ),
        migrations.AlterField(
            model_name='label',
            name='uuid',
            field=models.UUIDField(help_text='Generated by the browser, so that resending the label has no effect.', unique=True),
        ),
        migrations.AlterField(
            model_name='labeler',
            name='invited_by',
            field=models.ForeignKey(help_text='Researcher who invited the labeler. Names are unique per researcher.', on_delete=django.db.models.deletion.PROTECT, related_name='invited_labelers', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AlterField(
            model_name='lease',
            name='invite',
            field=models.ForeignKey(blank=True, db_index=False, help_text='Invitation used when the lease was granted or last renewed. The answer counts toward it.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.invite'),
        ),
        migrations.AlterField(
            model_name='lease',
            name='prompt_version',
            field=models.PositiveIntegerField(db_default=1, default=1, help_text='Version of the prompt when the lease was granted or last renewed.'),
        ),
        migrations.AlterField(
            model_name='lease',
            name='shown',
            field=models.BooleanField(default=False, help_text='The pair has been displayed, not just prefetched.'),
        ),
        migrations.AlterField(
            model_name='participation',
            name='answers',
            field=models.PositiveIntegerField(default=0, help_text='Number of labels given that are not void, including withdrawn ones.'),
        ),
        migrations.AlterField(
            model_name='participation',
            name='completed_answers',
            field=models.PositiveIntegerField(blank=True, editable=False, help_text='Number of valid answers at completion. With fewer, the task is no longer complete.', null=True),
        ),
        migrations.AlterField(
            model_name='participation',
            name='completed_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='When the labeler was told that the task is complete.', null=True),
        ),
        migrations.AlterField(
            model_name='participation',
            name='confusion',
            field=models.JSONField(blank=True, help_text='Estimated confusion matrix: true answers as rows, given answers as columns.', null=True),
        ),
        migrations.AlterField(
            model_name='participation',
            name='consented_to',
            field=models.ForeignKey(blank=True, help_text='Consent text that the labeler accepted most recently.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.consenttext'),
        ),
        migrations.AlterField(
            model_name='participation',
            name='elsewhere',
            field=models.IntegerField(blank=True, editable=False, help_text='Number of valid answers under other invitations. Empty: the labeler has used no other.', null=True),
        ),
        migrations.AlterField(
            model_name='participation',
            name='empty_since',
            field=models.DateTimeField(blank=True, editable=False, help_text='Since this time, there has been nothing for the labeler to judge.', null=True),
        ),
        migrations.AlterField(
            model_name='participation',
            name='gold_checks',
            field=models.CharField(blank=True, default='', help_text='Results of the latest attention checks, oldest first: 1 is passed, 0 is failed.', max_length=10),
        ),
        migrations.AlterField(
            model_name='participation',
            name='invite',
            field=models.ForeignKey(blank=True, help_text="The labeler's current invitation, if known.", null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='participations', to='feedback.invite'),
        ),
        migrations.AlterField(
            model_name='participation',
            name='stopped_at',
            field=models.DateTimeField(blank=True, help_text='From this time on, the labeler gets no more pairs.', null=True),
        ),
        migrations.AlterField(
            model_name='participation',
            name='undone',
            field=models.PositiveIntegerField(default=0, help_text='Number of these labels that were withdrawn.'),
        ),
        migrations.AlterField(
            model_name='participation',
            name='watch_checks',
            field=models.CharField(blank=True, default='', help_text='Results of the latest watch-time checks, oldest first: 1 is passed, 0 is too fast.', max_length=10),
        ),
        migrations.AlterField(
            model_name='promptversion',
            name='author',
            field=models.ForeignKey(blank=True, help_text='User who wrote this version on the site. Empty: it came from the training run.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AlterField(
            model_name='undo',
            name='lease',
            field=models.ForeignKey(blank=True, help_text='New lease that gave the pair back to the labeler, if any.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='feedback.lease'),
        ),
        migrations.AlterField(
            model_name='undo',
            name='retracted_by',
            field=models.ForeignKey(blank=True, help_text='Researcher who withdrew the label. Empty: the labeler did, or the undo was imported.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AlterField(
            model_name='undo',
            name='uuid',
            field=models.UUIDField(help_text='Generated by the browser, so that resending the undo has no effect.', unique=True),
        ),
    ]

    operations = [AlterTogether(state_operations=reworded)]
