"""Kinds of labelers, and what models may decide without people.

Safe while the site serves.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0006_settled_comparisons'),
    ]

    operations = [
        migrations.AddField(
            model_name='comparison',
            name='disputed',
            field=models.BooleanField(db_default=False, default=False, editable=False, help_text='Fewer than two thirds of the reward models agreed. People answer before models.'),
        ),
        migrations.AddField(
            model_name='experiment',
            name='models_seen_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name='experiment',
            name='models_share',
            field=models.FloatField(editable=False, help_text='Share of the questions that a model at work may decide without people.', null=True),
        ),
        migrations.AddField(
            model_name='labeler',
            name='kind',
            field=models.CharField(choices=[('human', 'human'), ('model', 'model'), ('bot', 'bot')], db_default='human', default='human', max_length=5),
        ),
        migrations.AddField(
            model_name='participation',
            name='share',
            field=models.FloatField(db_default=0.0, default=0.0, help_text='Share of the questions that a model may decide without people.'),
        ),
    ]
