"""Reasons that labelers give for their answers.

Safe while the site serves.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0007_labeler_kind'),
    ]

    operations = [
        migrations.AddField(
            model_name='experiment',
            name='asks_reasons',
            field=models.BooleanField(db_default=False, default=False, help_text='Labelers may write why they chose an answer.'),
        ),
        migrations.AddField(
            model_name='label',
            name='reason',
            field=models.CharField(blank=True, db_default='', default='', help_text="Why the labeler chose this answer, in the labeler's words.", max_length=500),
        ),
    ]
