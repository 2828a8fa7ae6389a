"""How many answers each episode's video is built on, and whether labelers see these videos.

Safe while the site serves: processes of the version before leave the count empty and show the videos.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('feedback', '0022_feed_cursor'),
    ]

    operations = [
        migrations.AddField(
            model_name='episode',
            name='answered',
            field=models.PositiveIntegerField(blank=True, help_text='Number of comparisons that had an answer when the video was registered. Empty: unknown.', null=True),
        ),
        migrations.AddField(
            model_name='experiment',
            name='show_episodes',
            field=models.BooleanField(db_default=True, default=True, help_text="Show labelers videos of the agent's full episodes. Turn this off for studies in which the videos could influence the answers."),
        ),
    ]
