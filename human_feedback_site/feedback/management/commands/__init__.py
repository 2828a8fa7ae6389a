"""The site's ``manage.py`` commands."""
