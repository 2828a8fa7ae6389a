"""The changes of 0.2.0. Processes of 0.1.0 work with or without them."""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('feedback', name) for name in (
        '0019_reword_texts',
        '0020_webhooks',
        '0021_identities',
        '0022_feed_cursor',
        '0023_answers_behind_episodes',
        '0024_webhook_format',
        '0025_trainer_left_at',
    )]

    dependencies = [
        ('feedback', '0001_0_1_0'),
    ]

    operations = [
        migrations.CreateModel(
            name='WebhookEndpoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='The log shows this name instead of the URL.', max_length=100, unique=True)),
                ('url', models.CharField(max_length=500, verbose_name='URL')),
                ('training_waiting', models.BooleanField(default=True, help_text='Training has waited for five minutes, and nobody has labeled.', verbose_name='training is waiting')),
                ('experiment_finished', models.BooleanField(default=True, help_text="An experiment's run has ended, or someone finished it on the site.")),
                ('labeler_blocked', models.BooleanField(default=True, help_text='A labeler was stopped by attention checks, or stopped or blocked by someone.')),
                ('enabled', models.BooleanField(default=True, help_text='Events are sent only while this is on. Turning it on or off resets its failures.')),
                ('secret', models.CharField(editable=False, max_length=100)),
                ('failing_since', models.DateTimeField(blank=True, editable=False, help_text='All attempts since this time have failed.', null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'ordering': ('name',),
            },
        ),
        migrations.AddField(
            model_name='experiment',
            name='waiting_announced_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='When the webhooks were told of this wait.', null=True),
        ),
        migrations.AddField(
            model_name='experiment',
            name='waiting_since',
            field=models.DateTimeField(blank=True, editable=False, help_text='Since this time, training has been waiting for answers.', null=True),
        ),
        migrations.CreateModel(
            name='WebhookDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, help_text='The header webhook-id, which is the same in all attempts.', unique=True)),
                ('event', models.CharField(choices=[('training.waiting', 'training is waiting'), ('experiment.finished', 'experiment finished'), ('labeler.blocked', 'labeler blocked'), ('test', 'test')], max_length=20)),
                ('body', models.TextField(help_text='The JSON that is sent.')),
                ('status', models.CharField(choices=[('pending', 'pending'), ('delivered', 'delivered'), ('failed', 'failed')], default='pending', max_length=10)),
                ('attempts', models.PositiveSmallIntegerField(default=0)),
                ('due_at', models.DateTimeField(default=django.utils.timezone.now, help_text='Time of the next attempt.')),
                ('last_error', models.TextField(blank=True, default='')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('delivered_at', models.DateTimeField(blank=True, null=True)),
                ('experiment', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='webhook_deliveries', to='feedback.experiment')),
                ('endpoint', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='feedback.webhookendpoint')),
            ],
            options={
                'verbose_name_plural': 'webhook deliveries',
                'ordering': ('-id',),
                'indexes': [models.Index(condition=models.Q(('status', 'pending')), fields=['due_at'], name='pending_delivery')],
            },
        ),
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('issuer', models.CharField(max_length=1000)),
                ('subject', models.CharField(help_text='Identifier that the provider never reassigns.', max_length=255)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='identity', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'identities',
                'constraints': [models.UniqueConstraint(fields=('issuer', 'subject'), name='identity_at_provider')],
            },
        ),
        migrations.AddField(
            model_name='experiment',
            name='feed_cursor',
            field=models.PositiveBigIntegerField(blank=True, editable=False, help_text='Sequence number of the last decision that the trainer has read. Noted only if metrics are on.', null=True),
        ),
        migrations.AddField(
            model_name='episode',
            name='answered',
            field=models.PositiveIntegerField(blank=True, help_text='Number of comparisons that had an answer when the video was registered. Empty: unknown.', null=True),
        ),
        migrations.AddField(
            model_name='experiment',
            name='show_episodes',
            field=models.BooleanField(db_default=True, default=True, help_text="Show labelers videos of the agent's full episodes. Turn this off for studies in which the videos could influence the answers."),
        ),
        migrations.AddField(
            model_name='webhookendpoint',
            name='format',
            field=models.CharField(choices=[('json', 'JSON'), ('slack', 'Slack and Mattermost')], db_default='json', default='json', help_text='Chats need a message to show; programs get the data of the event.', max_length=10),
        ),
        migrations.AddField(
            model_name='experiment',
            name='trainer_left_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='When the trainer said that it stops. Empty: it may be running.', null=True),
        ),
    ]
