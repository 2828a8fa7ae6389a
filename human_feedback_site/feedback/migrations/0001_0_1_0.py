"""The tables of 0.1.0."""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('feedback', name) for name in (
        '0001_initial',
        '0002_signs_of_life',
        '0003_beside_the_pairs',
        '0004_quality_of_the_crowd',
        '0005_find_gold_pairs',
        '0006_login_limits',
        '0007_prompt_versions',
        '0008_retracted_by',
        '0009_invites_and_consent',
        '0010_seldom_decisions',
        '0011_token_limits',
        '0012_comparisons_by_decision',
        '0013_orders_of_the_browser',
        '0014_waiting_labels',
        '0015_invitation_parts',
        '0016_pretrain_labels',
        '0017_deletion_asked_at',
        '0018_clips_missing',
    )]

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Attempts',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('count', models.PositiveIntegerField()),
                ('ends_at', models.DateTimeField(help_text='End of the time window. The next attempt restarts the count.')),
            ],
            options={
                'verbose_name_plural': 'attempts',
            },
        ),
        migrations.CreateModel(
            name='ConsentText',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('text', models.TextField()),
                ('digest', models.CharField(help_text='SHA-256 hash of the text, in hexadecimal.', max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'ordering': ('-id',),
            },
        ),
        migrations.CreateModel(
            name='Experiment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, unique=True, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,100}\\Z', 'Use 1 to 100 ASCII letters, digits, underscores and hyphens.', code='invalid_name')])),
                ('run_id', models.UUIDField(help_text="ID of the training run. A different run can't use the experiment's name.")),
                ('env_id', models.CharField(max_length=200)),
                ('prompt', models.TextField(help_text='Instruction shown to labelers.')),
                ('n_labels', models.PositiveIntegerField(blank=True, help_text='Total number of labels requested. Empty: no limit.', null=True)),
                ('fps', models.PositiveSmallIntegerField()),
                ('has_true_reward', models.BooleanField()),
                ('state', models.CharField(choices=[('running', 'Running'), ('paused', 'Paused'), ('finished', 'Finished')], default='running', max_length=10)),
                ('overlap', models.PositiveSmallIntegerField(default=1, help_text='Number of labelers who judge each comparison.', validators=[django.core.validators.MinValueValidator(1)])),
                ('waiting_for', models.PositiveIntegerField(blank=True, help_text="Number of answers that training is waiting for. Empty: training isn't waiting.", null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('finished_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('trainer_seen_at', models.DateTimeField(blank=True, editable=False, help_text="Approximate time of the trainer's last request.", null=True)),
                ('media_deleted_at', models.DateTimeField(blank=True, editable=False, help_text='Clips of all comparisons created before this time have been deleted.', null=True)),
                ('aggregated_seq', models.PositiveBigIntegerField(default=0, editable=False, help_text="Sequence number of the newest decision when labelers' accuracy was last estimated.")),
                ('aggregation', models.CharField(choices=[('automatic', 'Dawid-Skene if comparisons have several labelers, otherwise majority vote'), ('majority', 'majority vote'), ('dawid_skene', 'Dawid-Skene: labels weighted by estimated labeler accuracy')], default='automatic', max_length=11)),
                ('class_prior', models.JSONField(blank=True, editable=False, help_text='Latest estimate of how often the true answer is first, equal and second.', null=True)),
                ('gold_rate', models.FloatField(default=0.0, help_text="Fraction of a labeler's pairs, from 0 to 1, that are attention checks.", validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)])),
                ('min_watch_ms', models.PositiveIntegerField(default=0, help_text='Minimum watch time in milliseconds. Faster answers count as failed attention checks.')),
                ('overlap_more', models.PositiveSmallIntegerField(default=3, help_text='Number of labelers for comparisons in the "overlap share".', validators=[django.core.validators.MinValueValidator(1)])),
                ('overlap_share', models.FloatField(default=0.0, help_text='Fraction of comparisons, from 0 to 1, that use "overlap more" instead of "overlap".', validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)])),
                ('repeat_rate', models.FloatField(default=0.0, help_text="Fraction of a labeler's pairs, from 0 to 1, shown a second time to test consistency.", validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)])),
                ('stop_failures', models.PositiveSmallIntegerField(default=5, help_text='Labelers who fail this many of their last 10 checks of the same type get no more pairs.', validators=[django.core.validators.MinValueValidator(1)])),
                ('warn_failures', models.PositiveSmallIntegerField(default=3, help_text='Labelers who fail this many of their last 10 checks of the same type are warned.', validators=[django.core.validators.MinValueValidator(1)])),
                ('prompt_version', models.PositiveIntegerField(db_default=1, default=1, editable=False, help_text='Version number of the current prompt.')),
                ('pretrain_labels', models.PositiveIntegerField(blank=True, help_text="Number of answers needed before training starts. Empty: training doesn't wait.", null=True)),
                ('deletion_asked_at', models.DateTimeField(blank=True, editable=False, help_text='From this time on, the experiment is hidden while its rows and clips are deleted.', null=True, verbose_name='deletion requested at')),
                ('consent', models.ForeignKey(blank=True, editable=False, help_text='Consent text that labelers must accept before their first pair. Empty: none is needed.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.consenttext')),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='experiments', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ('-id',),
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(default='trainer', help_text='What the token is used for.', max_length=100)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('experiment', models.CharField(blank=True, db_default='', default='', help_text='Name of the only experiment that the token can access, which need not exist yet. Empty: all experiments of the user.', max_length=100, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,100}\\Z', 'Use 1 to 100 ASCII letters, digits, underscores and hyphens.', code='invalid_name')])),
                ('expires_at', models.DateTimeField(blank=True, help_text='The token stops working at this time. Empty: it never expires.', null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_tokens', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'API token',
            },
        ),
        migrations.CreateModel(
            name='SequenceCounter',
            fields=[
                ('experiment', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='counter', serialize=False, to='feedback.experiment')),
                ('last_seq', models.PositiveBigIntegerField(default=0)),
            ],
        ),
        migrations.AddField(
            model_name='consenttext',
            name='experiment',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='consent_texts', to='feedback.experiment'),
        ),
        migrations.CreateModel(
            name='Comparison',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(unique=True)),
                ('phase', models.CharField(choices=[('pretraining', 'Pretraining'), ('training', 'Training')], max_length=12)),
                ('step', models.PositiveBigIntegerField(help_text='Total environment steps taken when the comparison was requested.')),
                ('priority', models.IntegerField(help_text='Comparisons with a higher priority are shown first.')),
                ('first_key', models.CharField(max_length=300)),
                ('second_key', models.CharField(max_length=300)),
                ('first_return', models.FloatField(blank=True, null=True, verbose_name='true return of the first clip')),
                ('second_return', models.FloatField(blank=True, null=True, verbose_name='true return of the second clip')),
                ('status', models.CharField(choices=[('open', 'Open'), ('answered', 'Answered'), ('cancelled', 'Cancelled'), ('gold', 'Gold')], default='open', max_length=10)),
                ('n_labels', models.PositiveSmallIntegerField(default=0, help_text='Number of counted labels. Updated only while the row is locked.')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('gold', models.CharField(blank=True, choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal')], help_text="Known answer, if this is an attention check. Labelers can't tell that it is one.", max_length=10, null=True)),
                ('score_equal', models.FloatField(default=0.0)),
                ('score_first', models.FloatField(default=0.0)),
                ('score_second', models.FloatField(default=0.0)),
                ('wanted', models.PositiveSmallIntegerField(default=1, help_text='Number of labels requested.')),
                ('clips_missing', models.BooleanField(db_default=False, editable=False, help_text='The comparison was imported, but its clips were not in the media store.')),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='comparisons', to='feedback.experiment')),
            ],
        ),
        migrations.CreateModel(
            name='Labeler',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=50)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('experiments', models.ManyToManyField(blank=True, related_name='labelers', to='feedback.experiment')),
                ('invited_by', models.ForeignKey(help_text='Researcher who invited the labeler. Names are unique per researcher.', on_delete=django.db.models.deletion.PROTECT, related_name='invited_labelers', to=settings.AUTH_USER_MODEL)),
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='labeler', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Invite',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('named', 'one named labeler'), ('anonymous', 'a new labeler with a pseudonym for each sign-in')], max_length=9)),
                ('note', models.CharField(blank=True, help_text='Purpose of the invitation. Labelers never see it.', max_length=100)),
                ('limit', models.PositiveIntegerField(blank=True, help_text='Maximum number of sign-ins. Empty: no limit.', null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('uses', models.PositiveIntegerField(default=0, help_text='Number of sign-ins so far.')),
                ('answers_wanted', models.PositiveIntegerField(blank=True, help_text='Number of answers requested from each labeler. Empty: no limit.', null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('platform', models.CharField(blank=True, choices=[('', 'no platform'), ('prolific', 'Prolific')], default='', max_length=8)),
                ('study', models.CharField(blank=True, help_text='Study ID on the platform. Participants of other studies are refused. Empty: any study.', max_length=24, validators=[django.core.validators.RegexValidator('\\A[0-9a-f]{24}\\Z', 'Enter the 24-character study ID (digits and letters a to f).')])),
                ('completion_code', models.CharField(blank=True, help_text='Shown to labelers who complete the task.', max_length=40, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,40}\\Z', 'Use 1 to 40 letters, digits, underscores and hyphens.')])),
                ('screen_out_code', models.CharField(blank=True, help_text='Shown to labelers who are stopped after failing attention checks.', max_length=40, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,40}\\Z', 'Use 1 to 40 letters, digits, underscores and hyphens.')])),
                ('return_url', models.CharField(blank=True, help_text='URL that labelers return to. The code is added as the query parameter cc.', max_length=200, validators=[django.core.validators.URLValidator(schemes=['https'])])),
                ('expires_at', models.DateTimeField()),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='invites', to='feedback.experiment')),
                ('labeler', models.ForeignKey(blank=True, help_text='Labeler who signs in with a named invitation.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='invites', to='feedback.labeler')),
            ],
            options={
                'ordering': ('-id',),
            },
        ),
        migrations.CreateModel(
            name='ConsentAnswer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('agreed', models.BooleanField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('text', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='answers', to='feedback.consenttext')),
                ('labeler', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='consent_answers', to='feedback.labeler')),
            ],
            options={
                'ordering': ('-id',),
            },
        ),
        migrations.CreateModel(
            name='Arrival',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('participant', models.CharField(max_length=24)),
                ('study', models.CharField(max_length=24)),
                ('session', models.CharField(max_length=24)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='arrivals', to='feedback.experiment')),
                ('invite', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='arrivals', to='feedback.invite')),
                ('labeler', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='arrivals', to='feedback.labeler')),
            ],
            options={
                'ordering': ('-id',),
            },
        ),
        migrations.CreateModel(
            name='Lease',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, unique=True)),
                ('swapped', models.BooleanField(help_text='The second clip is shown on the left.')),
                ('shown', models.BooleanField(default=False, help_text='The pair has been displayed, not just prefetched.')),
                ('expires_at', models.DateTimeField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('purpose', models.CharField(choices=[('judge', 'Judge'), ('gold', 'Gold'), ('repeat', 'Repeat')], default='judge', max_length=6)),
                ('prompt_version', models.PositiveIntegerField(db_default=1, default=1, help_text='Version of the prompt when the lease was granted or last renewed.')),
                ('comparison', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='leases', to='feedback.comparison')),
                ('invite', models.ForeignKey(blank=True, db_index=False, help_text='Invitation used when the lease was granted or last renewed. The answer counts toward it.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.invite')),
                ('labeler', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='leases', to='feedback.labeler')),
            ],
        ),
        migrations.CreateModel(
            name='Label',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(help_text='Generated by the browser, so that resending the label has no effect.', unique=True)),
                ('choice', models.CharField(choices=[('left', 'Left'), ('right', 'Right'), ('equal', 'Equal'), ('cant_tell', "Can't tell")], max_length=10)),
                ('swapped', models.BooleanField(help_text='The second clip was shown on the left.')),
                ('status', models.CharField(choices=[('counted', 'Counted'), ('surplus', 'Surplus'), ('gold', 'Gold'), ('repeat', 'Repeat'), ('void', 'Void')], max_length=10)),
                ('response_ms', models.PositiveIntegerField(blank=True, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('shown_ms', models.PositiveIntegerField(blank=True, help_text='Time in milliseconds that both clips were visible, as reported by the browser.', null=True)),
                ('prompt_version', models.PositiveIntegerField(db_default=1, default=1, help_text='Version of the prompt that the labeler answered.')),
                ('comparison', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='labels', to='feedback.comparison')),
                ('labeler', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='labels', to='feedback.labeler')),
                ('lease', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='labels', to='feedback.lease')),
            ],
        ),
        migrations.CreateModel(
            name='Participation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('answers', models.PositiveIntegerField(default=0, help_text='Number of labels given that are not void, including withdrawn ones.')),
                ('undone', models.PositiveIntegerField(default=0, help_text='Number of these labels that were withdrawn.')),
                ('gold_checks', models.CharField(blank=True, default='', help_text='Results of the latest attention checks, oldest first: 1 is passed, 0 is failed.', max_length=10)),
                ('watch_checks', models.CharField(blank=True, default='', help_text='Results of the latest watch-time checks, oldest first: 1 is passed, 0 is too fast.', max_length=10)),
                ('stopped_at', models.DateTimeField(blank=True, help_text='From this time on, the labeler gets no more pairs.', null=True)),
                ('confusion', models.JSONField(blank=True, help_text='Estimated confusion matrix: true answers as rows, given answers as columns.', null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('completed_at', models.DateTimeField(blank=True, editable=False, help_text='When the labeler was told that the task is complete.', null=True)),
                ('empty_since', models.DateTimeField(blank=True, editable=False, help_text='Since this time, there has been nothing for the labeler to judge.', null=True)),
                ('completed_answers', models.PositiveIntegerField(blank=True, editable=False, help_text='Number of valid answers at completion. With fewer, the task is no longer complete.', null=True)),
                ('elsewhere', models.IntegerField(blank=True, editable=False, help_text='Number of valid answers under other invitations. Empty: the labeler has used no other.', null=True)),
                ('consented_to', models.ForeignKey(blank=True, help_text='Consent text that the labeler accepted most recently.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='feedback.consenttext')),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='participations', to='feedback.experiment')),
                ('invite', models.ForeignKey(blank=True, help_text="The labeler's current invitation, if known.", null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='participations', to='feedback.invite')),
                ('labeler', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='participations', to='feedback.labeler')),
            ],
        ),
        migrations.CreateModel(
            name='InvitePart',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('answered', models.IntegerField(default=0, help_text='Number of valid answers under this invitation.')),
                ('completed_at', models.DateTimeField(blank=True, help_text='When the labeler was told that the task is complete.', null=True)),
                ('completed_answers', models.PositiveIntegerField(blank=True, help_text='Number of valid answers at completion. With fewer, the task is no longer complete.', null=True)),
                ('invite', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='feedback.invite')),
                ('participation', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='feedback.participation')),
            ],
        ),
        migrations.CreateModel(
            name='PromptVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField()),
                ('text', models.TextField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('author', models.ForeignKey(blank=True, help_text='User who wrote this version on the site. Empty: it came from the training run.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='prompts', to='feedback.experiment')),
            ],
            options={
                'ordering': ('-version',),
            },
        ),
        migrations.CreateModel(
            name='TrainingPoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.PositiveBigIntegerField()),
                ('tag', models.CharField(max_length=100)),
                ('value', models.FloatField()),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='points', to='feedback.experiment')),
            ],
        ),
        migrations.CreateModel(
            name='Undo',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(help_text='Generated by the browser, so that resending the undo has no effect.', unique=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('label', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='undo', to='feedback.label')),
                ('lease', models.ForeignKey(blank=True, help_text='New lease that gave the pair back to the labeler, if any.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='feedback.lease')),
                ('retracted_by', models.ForeignKey(blank=True, help_text='Researcher who withdrew the label. Empty: the labeler did, or the undo was imported.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Example',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('better', models.CharField(choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal'), ('cant_tell', "Can't tell")], help_text='Correct answer.', max_length=10)),
                ('explanation', models.TextField(blank=True, help_text='Reason for the answer, shown to labelers.', max_length=500)),
                ('practice', models.BooleanField(default=False, help_text='Ask labelers this before their first pair. If unchecked, it is shown with its answer.')),
                ('comparison', models.ForeignKey(help_text='Comparison whose clips are shown.', on_delete=django.db.models.deletion.CASCADE, related_name='+', to='feedback.comparison')),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='examples', to='feedback.experiment')),
            ],
            options={
                'ordering': ('id',),
                'constraints': [models.UniqueConstraint(fields=('experiment', 'comparison'), name='example_of_experiment')],
            },
        ),
        migrations.CreateModel(
            name='Episode',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.PositiveBigIntegerField(help_text='Total environment steps taken when the episode ended.')),
                ('key', models.CharField(max_length=300)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='episodes', to='feedback.experiment')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('experiment', 'step'), name='episode_of_experiment')],
            },
        ),
        migrations.CreateModel(
            name='Decision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seq', models.PositiveBigIntegerField()),
                ('decision', models.CharField(blank=True, choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal'), ('cant_tell', "Can't tell")], help_text="Empty if all of the comparison's labels were withdrawn.", max_length=10, null=True)),
                ('probability', models.FloatField(blank=True, help_text='Probability that the first clip is preferred.', null=True)),
                ('n_labels', models.PositiveSmallIntegerField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('comparison', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='decisions', to='feedback.comparison')),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='decisions', to='feedback.experiment')),
            ],
            options={
                'indexes': [models.Index(models.F('comparison'), models.OrderBy(models.F('seq'), descending=True), name='decision_newest'), models.Index(condition=models.Q(('decision__in', ('equal', 'cant_tell'))), fields=['experiment', 'decision', 'comparison'], name='decision_seldom')],
                'constraints': [models.UniqueConstraint(fields=('experiment', 'seq'), name='decision_seq')],
            },
        ),
        migrations.AddConstraint(
            model_name='consenttext',
            constraint=models.UniqueConstraint(fields=('experiment', 'digest'), name='consent_text_once'),
        ),
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(models.F('experiment'), models.OrderBy(models.F('priority'), descending=True), models.OrderBy(models.F('n_labels'), descending=True), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('status', 'open')), name='comparison_queue'),
        ),
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(condition=models.Q(('status', 'gold')), fields=['experiment'], name='comparison_gold'),
        ),
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(condition=models.Q(('n_labels', 0)), fields=['experiment', 'id'], name='comparison_unlabeled'),
        ),
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(models.F('experiment'), models.OrderBy(models.F('priority'), descending=True), models.OrderBy(models.F('id'), descending=True), name='comparison_by_priority'),
        ),
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(models.F('experiment'), models.OrderBy(models.F('n_labels'), descending=True), models.OrderBy(models.F('id'), descending=True), name='comparison_by_labels'),
        ),
        migrations.AddConstraint(
            model_name='labeler',
            constraint=models.UniqueConstraint(fields=('invited_by', 'name'), name='labeler_name_per_researcher'),
        ),
        migrations.AddConstraint(
            model_name='arrival',
            constraint=models.UniqueConstraint(fields=('invite', 'participant'), name='arrival_by_invite'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(fields=['comparison', 'expires_at'], name='lease_of_comparison'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(fields=['labeler', 'expires_at'], name='lease_by_labeler'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(condition=models.Q(('invite__isnull', False)), fields=['invite'], name='lease_of_invite'),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(fields=['labeler', 'created_at'], name='label_of_labeler'),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(fields=['comparison', 'labeler'], name='label_judge'),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(condition=models.Q(('status', 'surplus')), fields=['comparison'], name='label_waiting'),
        ),
        migrations.AddConstraint(
            model_name='participation',
            constraint=models.UniqueConstraint(fields=('labeler', 'experiment'), name='participation_of_labeler'),
        ),
        migrations.AddConstraint(
            model_name='invitepart',
            constraint=models.UniqueConstraint(fields=('participation', 'invite'), name='part_of_invite'),
        ),
        migrations.AddConstraint(
            model_name='promptversion',
            constraint=models.UniqueConstraint(fields=('experiment', 'version'), name='prompt_of_experiment'),
        ),
        migrations.AddConstraint(
            model_name='trainingpoint',
            constraint=models.UniqueConstraint(fields=('experiment', 'tag', 'step'), name='training_point'),
        ),
    ]
