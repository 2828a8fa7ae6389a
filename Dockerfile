# Three images: `site` for web and chores, `render` for workers that make clips, `trainer` for all there is.
# Each step is a script in docker/; `make test-containers` runs them without a container, and then builds the images.

FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY constraints.txt ./
COPY docker/requirements-site.txt docker/requirements-render.txt docker/requirements-trainer.txt docker/
COPY docker/install-distributions docker/install-project docker/

FROM build AS site-build
RUN --mount=type=cache,target=/root/.cache/pip docker/install-distributions site /opt/rl-teacher
COPY pyproject.toml setup.py README.md LICENSE ./
COPY human_feedback_site human_feedback_site
RUN --mount=type=cache,target=/root/.cache/pip docker/install-project /opt/rl-teacher

FROM build AS render-build
RUN --mount=type=cache,target=/root/.cache/pip docker/install-distributions render /opt/rl-teacher
COPY pyproject.toml setup.py README.md LICENSE ./
COPY teacher teacher
RUN --mount=type=cache,target=/root/.cache/pip docker/install-project /opt/rl-teacher

FROM build AS trainer-build
# pip reads it: an index of PyTorch for processors alone makes this image some gigabytes smaller.
ARG PIP_EXTRA_INDEX_URL=
RUN --mount=type=cache,target=/root/.cache/pip docker/install-distributions trainer /opt/rl-teacher
COPY pyproject.toml setup.py README.md LICENSE ./
COPY agents agents
COPY teacher teacher
COPY human_feedback_site human_feedback_site
RUN --mount=type=cache,target=/root/.cache/pip docker/install-project /opt/rl-teacher

# What the images share. Only /tmp and volumes have to be writable.
FROM python:3.11-slim-bookworm AS runtime
ENV PATH=/opt/rl-teacher/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin teacher
WORKDIR /app

FROM runtime AS gl
COPY docker/install-gl docker/
RUN docker/install-gl

FROM runtime AS site
LABEL org.opencontainers.image.title="RL-Teacher site"
COPY manage.py ./
COPY docker/site-setup docker/health-site docker/health-worker docker/
COPY --from=site-build /opt/rl-teacher /opt/rl-teacher
RUN install --directory --owner=10001 --group=10001 runs
USER 10001:10001
EXPOSE 8000
CMD ["python", "-m", "human_feedback_site.serve", "--bind", "0.0.0.0:8000"]

FROM gl AS render
LABEL org.opencontainers.image.title="RL-Teacher render worker"
COPY docker/health-worker docker/
COPY --from=render-build /opt/rl-teacher /opt/rl-teacher
USER 10001:10001
CMD ["celery", "--app", "teacher.render_tasks", "worker", "--without-gossip", "--without-mingle", "--concurrency", "1", "--hostname", "render@%h"]

FROM gl AS trainer
LABEL org.opencontainers.image.title="RL-Teacher trainer"
COPY docker/trainer docker/
COPY --from=trainer-build /opt/rl-teacher /opt/rl-teacher
RUN install --directory --owner=10001 --group=10001 runs
USER 10001:10001
ENTRYPOINT ["teach"]
