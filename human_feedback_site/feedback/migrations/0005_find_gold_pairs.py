"""Gold pairs of an experiment are found without reading the others. Safe while the site serves."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0004_quality_of_the_crowd'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(condition=models.Q(('status', 'gold')), fields=['experiment'], name='comparison_gold'),
        ),
    ]
