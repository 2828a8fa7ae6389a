"""Indexes by which the comparison browser finds what is seldom decided, and what nothing is decided about.

Safe while the site serves: processes of the version before need neither.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0011_token_limits'),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='decision',
            name='decision_seldom',
        ),
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(condition=models.Q(('n_labels', 0)), fields=['experiment', 'id'], name='comparison_unlabeled'),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(condition=models.Q(('decision__in', ('equal', 'cant_tell'))), fields=['experiment', 'decision', 'comparison'], name='decision_seldom'),
        ),
    ]
