"""Backup and restore of a whole site: the database, the clips, the run directories and the secrets.

``manage.py backup`` and ``manage.py restore`` call :func:`.write.back_up` and :func:`.read.restore`. A backup
copies the run directories first, then the database, then the clips. This order keeps the backup
consistent even if the site is running; ``docs/deployment.md`` explains why. The backup folder gets its final
name only after all files have been checked.
"""
