"""How long a pair was in sight, examples, and films of whole episodes.

Safe while the site serves: the new column is empty, and processes of the version before do not miss it.
"""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0002_signs_of_life'),
    ]

    operations = [
        migrations.AddField(
            model_name='label',
            name='shown_ms',
            field=models.PositiveIntegerField(blank=True, help_text='How long both clips had been in sight, as the browser says.', null=True),
        ),
        migrations.CreateModel(
            name='Episode',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.PositiveBigIntegerField(help_text='Environment steps made when it ended.')),
                ('key', models.CharField(max_length=300)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='episodes', to='feedback.experiment')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('experiment', 'step'), name='episode_of_experiment')],
            },
        ),
        migrations.CreateModel(
            name='Example',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('better', models.CharField(choices=[('first', 'First'), ('second', 'Second'), ('equal', 'Equal'), ('cant_tell', 'Cant Tell')], help_text='The answer.', max_length=10)),
                ('explanation', models.TextField(blank=True, help_text='Why; labelers read it.', max_length=500)),
                ('practice', models.BooleanField(default=False, help_text="Asked before a labeler's first pair. Otherwise it is shown with its answer.")),
                ('comparison', models.ForeignKey(help_text='Whose clips are shown.', on_delete=django.db.models.deletion.CASCADE, related_name='+', to='feedback.comparison')),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='examples', to='feedback.experiment')),
            ],
            options={
                'ordering': ('id',),
                'constraints': [models.UniqueConstraint(fields=('experiment', 'comparison'), name='example_of_experiment')],
            },
        ),
    ]
