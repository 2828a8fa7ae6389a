"""Let webhooks send messages for chats; say which letters an experiment's name may have.

Safe while the site serves: processes of the previous version send JSON to every endpoint.
"""


import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0023_answers_behind_episodes'),
    ]

    operations = [
        migrations.AddField(
            model_name='webhookendpoint',
            name='format',
            field=models.CharField(choices=[('json', 'JSON'), ('slack', 'Slack and Mattermost')], db_default='json', default='json', help_text='Chats need a message to show; programs get the data of the event.', max_length=10),
        ),
        migrations.AlterField(
            model_name='apitoken',
            name='experiment',
            field=models.CharField(blank=True, db_default='', default='', help_text='Name of the only experiment that the token can access, which need not exist yet. Empty: all experiments of the user.', max_length=100, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,100}\\Z', 'Use 1 to 100 ASCII letters, digits, underscores and hyphens.', code='invalid_name')]),
        ),
        migrations.AlterField(
            model_name='experiment',
            name='name',
            field=models.CharField(max_length=100, unique=True, validators=[django.core.validators.RegexValidator('\\A[A-Za-z0-9_-]{1,100}\\Z', 'Use 1 to 100 ASCII letters, digits, underscores and hyphens.', code='invalid_name')]),
        ),
    ]
