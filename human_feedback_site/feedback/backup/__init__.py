"""A whole site as a folder, and back: the database, the clips, the run directories and the secrets.

``manage.py backup`` and ``manage.py restore`` call :func:`.write.back_up` and :func:`.read.restore`. A backup
is copied in the order that keeps it consistent while everything runs: run directories, database, clips
(``docs/deployment.md`` says why). Its folder has its name only once all of it was checked.
"""
