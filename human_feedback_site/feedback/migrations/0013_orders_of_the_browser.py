"""Indexes in which the comparison browser reads its orders.

Safe while the site serves: processes of the version before need neither.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0012_comparisons_by_decision'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(models.F('experiment'), models.OrderBy(models.F('priority'), descending=True), models.OrderBy(models.F('id'), descending=True), name='comparison_by_priority'),
        ),
        migrations.AddIndex(
            model_name='comparison',
            index=models.Index(models.F('experiment'), models.OrderBy(models.F('n_labels'), descending=True), models.OrderBy(models.F('id'), descending=True), name='comparison_by_labels'),
        ),
    ]
