"""When an experiment finished, when its trainer was last heard from, and up to when its clips are deleted.

Safe while the site serves: the new columns are empty, and processes of the version before do not miss them.
"""

from django.db import migrations, models
from django.db.models.functions import Now


def finish_now(apps, schema_editor):
    """Those that are finished count from now on; when they did finish was not kept."""
    experiments = apps.get_model('feedback', 'Experiment').objects.using(schema_editor.connection.alias)
    experiments.filter(state='finished', finished_at=None).update(finished_at=Now())


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='experiment',
            name='finished_at',
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name='experiment',
            name='trainer_seen_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='When its trainer last asked for something, roughly.', null=True),
        ),
        migrations.AddField(
            model_name='experiment',
            name='media_deleted_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='Clips of comparisons made before are deleted.', null=True),
        ),
        migrations.RunPython(finish_now, migrations.RunPython.noop),
    ]
