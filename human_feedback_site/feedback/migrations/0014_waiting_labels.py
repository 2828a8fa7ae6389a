"""Labels that are void, and an index in which those that wait for a place are found.

Safe while the site serves: processes of the version before write no void label and need no index.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0013_orders_of_the_browser'),
    ]

    operations = [
        migrations.AlterField(
            model_name='label',
            name='status',
            field=models.CharField(choices=[('counted', 'Counted'), ('surplus', 'Surplus'), ('gold', 'Gold'), ('repeat', 'Repeat'), ('void', 'Void')], max_length=10),
        ),
        migrations.AlterField(
            model_name='participation',
            name='answers',
            field=models.PositiveIntegerField(default=0, help_text='Labels ever given that are not void.'),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(condition=models.Q(('status', 'surplus')), fields=['comparison'], name='label_waiting'),
        ),
    ]
