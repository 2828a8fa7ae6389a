"""What an API token is good for, and until when.

Safe while the site serves: processes of the version before do not miss the new columns.
"""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0010_seldom_decisions'),
    ]

    operations = [
        migrations.AddField(
            model_name='apitoken',
            name='experiment',
            field=models.CharField(blank=True, db_default='', default='', help_text="The only experiment that it is good for, also before there is one of that name; empty: all of the user's.", max_length=100, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,100}\\Z', 'Use 1 to 100 letters, digits, underscores and hyphens.', code='invalid_name')]),
        ),
        migrations.AddField(
            model_name='apitoken',
            name='expires_at',
            field=models.DateTimeField(blank=True, help_text='From then on it is good for nothing; empty: it never expires.', null=True),
        ),
    ]
