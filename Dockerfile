# One image for the site and for trainers; the command says which.
FROM python:3.11-slim

# Headless MuJoCo draws with these.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1-mesa-dri libosmesa6 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
COPY pyproject.toml constraints.txt README.md ./
COPY agents agents
COPY teacher teacher
COPY human_feedback_site human_feedback_site
COPY manage.py ./
RUN pip install --constraint constraints.txt --editable .

RUN useradd --create-home teacher && mkdir /app/state /app/runs && chown teacher /app/state /app/runs
USER teacher

EXPOSE 8000
# A thread waits for the database or the media store most of its time, so there are more of them than processors.
CMD ["gunicorn", "human_feedback_site.wsgi", "--bind", "0.0.0.0:8000", "--workers", "2", "--threads", "8"]
