"""Rewards that a run's predictor predicts, for researchers.

Safe while the site serves.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0004_kinds_of_questions'),
    ]

    operations = [
        migrations.CreateModel(
            name='PredictedRewards',
            fields=[
                ('comparison', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='predicted', serialize=False, to='feedback.comparison')),
                ('step', models.PositiveBigIntegerField(help_text='Total environment steps taken at the prediction.')),
                ('items', models.JSONField(help_text='For each clip, a curve of its rewards.')),
            ],
        ),
        migrations.AddField(
            model_name='episode',
            name='rewards',
            field=models.JSONField(blank=True, help_text='Curve of the rewards that the newest reward predictor predicts. Empty: not known.', null=True),
        ),
    ]
