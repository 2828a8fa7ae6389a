"""Which comparisons were imported without their clips.

Safe while the site serves: what processes of the version before make has its clips.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0017_deletion_asked_at'),
    ]

    operations = [
        migrations.AddField(
            model_name='comparison',
            name='clips_missing',
            field=models.BooleanField(db_default=False, editable=False, help_text='It was imported, and its clips were not in the store.'),
        ),
    ]
