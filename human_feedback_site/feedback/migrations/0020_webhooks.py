"""Add webhooks: endpoints, their deliveries, and how long training has been waiting.

Safe while the site serves: processes of the previous version leave the new columns empty.
"""

import django.db.models.deletion
import django.db.models.functions.datetime
import django.utils.timezone
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0019_reword_texts'),
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
    ]
