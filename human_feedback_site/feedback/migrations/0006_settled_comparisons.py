"""Answers of researchers that settle comparisons, and why the trainer asked.

Safe while the site serves.
"""

import django.core.validators
import django.db.models.deletion
import human_feedback_site.feedback.models.comparisons
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0005_predicted_rewards'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='comparison',
            name='reason',
            field=models.CharField(blank=True, db_default='', default='', help_text='Why the trainer asked: random, attention_check, or disagreement:5:5 with the number of reward models that prefer each answer. Empty if not known.', max_length=40, validators=[django.core.validators.RegexValidator('\\A(random|attention_check|disagreement(:[0-9]{1,4}){0,4})?\\Z')]),
        ),
        migrations.AddField(
            model_name='comparison',
            name='settled',
            field=models.CharField(blank=True, choices=human_feedback_site.feedback.models.comparisons.answer_choices, help_text="A researcher's own answer, which is the decision whatever labelers answer.", max_length=20, null=True),
        ),
        migrations.AddField(
            model_name='comparison',
            name='settled_by',
            field=models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
    ]
