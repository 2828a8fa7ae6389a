"""How far a trainer has read the feed, for metrics.

Safe while the site serves: processes of the version before don't know the column, which may be empty.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0021_identities'),
    ]

    operations = [
        migrations.AddField(
            model_name='experiment',
            name='feed_cursor',
            field=models.PositiveBigIntegerField(blank=True, editable=False, help_text='Sequence number of the last decision that the trainer has read. Noted only if metrics are on.', null=True),
        ),
    ]
