"""What a label's choice means.

Safe while the site serves: processes of 0.1.0 leave the column empty, and ``complete_labels`` fills it.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0002_0_2_0'),
    ]

    operations = [
        migrations.AddField(
            model_name='label',
            name='answer',
            field=models.CharField(choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal'), ('cant_tell', "Can't tell")], db_default='', help_text='Meaning of the choice. Processes of 0.1.0 leave it empty.', max_length=10),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(condition=models.Q(('answer', '')), fields=['id'], name='label_of_0_1_0'),
        ),
    ]
