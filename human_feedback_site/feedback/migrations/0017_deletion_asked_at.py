"""When somebody asked to delete an experiment: from then on it is hidden, until nothing of it is left.

Safe while the site serves: processes of the version before show such an experiment as a finished one.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0016_pretrain_labels'),
    ]

    operations = [
        migrations.AddField(
            model_name='experiment',
            name='deletion_asked_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='Since then it is hidden and its rows and clips are deleted, by a chore where need be.', null=True, verbose_name='being deleted since'),
        ),
    ]
