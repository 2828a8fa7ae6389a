"""Prompts are kept, and each lease and label knows its own. Safe while the site serves."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


def keep_present_prompts(apps, schema_editor):
    """What labelers are asked now came with the run, as far as is known."""
    schema_editor.connection.cursor().execute("""
        INSERT INTO feedback_promptversion (experiment_id, version, text, created_at)
        SELECT id, 1, prompt, created_at FROM feedback_experiment""")


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0006_login_limits'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='experiment',
            name='prompt_version',
            field=models.PositiveIntegerField(db_default=1, default=1, editable=False, help_text="Its number among the experiment's prompts."),
        ),
        migrations.AddField(
            model_name='label',
            name='prompt_version',
            field=models.PositiveIntegerField(db_default=1, default=1, help_text='Of the prompt that it was given under.'),
        ),
        migrations.AddField(
            model_name='lease',
            name='prompt_version',
            field=models.PositiveIntegerField(db_default=1, default=1, help_text='Of the prompt that came with it, or with its last renewal.'),
        ),
        migrations.CreateModel(
            name='PromptVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField()),
                ('text', models.TextField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('author', models.ForeignKey(blank=True, help_text='Who wrote it on the site; empty: it came with the run.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='prompts', to='feedback.experiment')),
            ],
            options={
                'ordering': ('-version',),
                'constraints': [models.UniqueConstraint(fields=('experiment', 'version'), name='prompt_of_experiment')],
            },
        ),
        migrations.RunPython(keep_present_prompts, migrations.RunPython.noop),
    ]
