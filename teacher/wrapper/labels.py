"""Sources of labels: a scripted teacher, or people, with the clips that they see."""

import contextlib
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from numpy.typing import NDArray

from teacher.clips import ClipJob, ClipSpec
from teacher.clips.encode import Frame, encode
from teacher.clips.render import CLIP_SIZE, ReplayRenderer, captured
from teacher.data.ledger import Ledger
from teacher.data.segments import Segment
from teacher.envs.capture import jpeg
from teacher.envs.text import TextFrames
from teacher.errors import ConfigError, DataError, RenderError
from teacher.files import atomic_write
from teacher.labeling.client import ExperimentSettings
from teacher.labeling.people import about_lost, ask_people, open_site
from teacher.queries.collector import Collector, SyntheticTeacher, scripted_judge
from teacher.reward.images import is_image_space
from teacher.settings.config import slug
from teacher.settings.teachers import ErrorModel
from teacher.wrapper.prompt import PromptCollector, terminal_descriptor
from teacher.wrapper.recording import Source
from teacher.wrapper.settings import WrapperConfig

_RUN_ID_NAME = "run_id"

_log = logging.getLogger("teacher.wrapper")

Mode = Literal["replay", "observations", "pictures", "none"]


class ClipSource:
    """Renders segments as clips.

    If ``env_fn`` is set, a thread replays the episode in an environment that ``env_fn`` makes. Otherwise,
    clips show the observations if they are images, or else frames rendered while the environment was stepped.

    Attributes:
        mode: source of the frames: ``replay``, ``observations``, ``pictures`` (frames captured while the
            environment was stepped) or ``none`` (no clips needed).
    """

    def __init__(self, config: WrapperConfig, source: Source, can_draw: bool) -> None:
        """Choose the mode; ``can_draw`` is True if the environment's ``render()`` returns images."""
        self._config, self._source = config, source
        self.mode: Mode = "none"
        if config.synthetic_prefs or not config.collect_prefs:
            pass
        elif config.env_fn is not None:
            self.mode = "replay"
        elif is_image_space(source.observation_space):
            self.mode = "observations"
        elif can_draw:
            self.mode = "pictures"
        else:
            raise ConfigError(
                "there is no source of clips for people to label: pass an env_fn that makes the environment "
                "with render_mode='rgb_array', make this environment with that render_mode, or pass an "
                "obs_transform_func that returns images"
            )
        self._stage: ReplayRenderer | None = None
        self._note = ""
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "clips")

    def can_show(self, segment: Segment) -> bool:
        """Return True if a segment can be shown; in mode ``pictures``, only if frames were captured."""
        return self.mode != "pictures" or segment.frames is not None

    def showable(self, segment: Segment) -> Segment:
        """In mode ``observations``, return a copy with observations as frames; else return ``segment``."""
        if self.mode != "observations":
            return segment
        return replace(segment, frames=tuple(jpeg(self._shown(one)) for one in segment.next_observations))

    def submit(self, job: ClipJob) -> "Future[Path]":
        """Start rendering a clip in the clip thread; return a future that resolves to the file's path."""
        return self._thread.submit(self._film, job)

    def frames(self, segment: Segment) -> "Future[list[Frame]]":
        """Start rendering a segment in the clip thread; return a future that resolves to its frames."""
        return self._thread.submit(self._frames, ClipSpec.of(segment))

    def close(self) -> None:
        """Make the clip thread stop after the current clip; return without waiting for it.

        Clips not yet started fail with :class:`RenderError`.
        """
        self._closed = True
        self._thread.submit(self._close_stage)
        self._thread.shutdown(wait=False)

    def _film(self, job: ClipJob) -> Path:
        encode(self._frames(job.spec), job.path, job.fps, job.size)
        return job.path

    def _frames(self, spec: ClipSpec) -> list[Frame]:
        if self._closed:
            raise RenderError("the wrapper was closed before the clip was rendered")
        if spec.frames is not None:
            return list(captured(spec.frames))
        if self._stage is None:
            self._stage = ReplayRenderer(self._source.env_id, {}, CLIP_SIZE, self._make)
        try:
            frames = list(self._stage.frames(spec))
            if (note := self._stage.note) != self._note:
                self._note = note
                _log.info(note)
            return frames
        except BaseException:
            self._close_stage()  # the next clip makes a new renderer
            raise

    def _make(self) -> gym.Env[Any, Any]:
        env = cast(Callable[[], gym.Env[Any, Any]], self._config.env_fn)()
        if env.render_mode == "ansi":
            env = TextFrames(env)
        if env.render_mode != "rgb_array":
            raise RenderError(
                f"env_fn made an environment with render_mode={env.render_mode!r}; it must use 'rgb_array'"
            )
        transform = self._config.obs_transform_func
        if transform is None:
            return env
        return TransformObservation(env, transform, self._source.observation_space)

    def _shown(self, image: NDArray[np.uint8]) -> Frame:
        """Convert the newest image in an observation to an RGB frame, upscaled by ``zoom_ratio``.

        An observation may be a stack of several frames.
        """
        shape = cast(spaces.Box, self._source.observation_space).shape
        if len(shape) == 4:
            image = image[-1]
        if len(shape) == 2:
            image = image[..., None]
        elif shape[-3] < min(shape[-2:]):
            image = np.moveaxis(image, 0, -1)
        channels = self._config.channels if image.shape[-1] >= self._config.channels else 1
        picture = np.broadcast_to(image[..., -channels:], (*image.shape[:2], 3))
        zoom = self._config.zoom_ratio
        return picture.repeat(zoom, axis=0).repeat(zoom, axis=1)

    def _close_stage(self) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            with contextlib.suppress(Exception):  # an environment may raise anything
                stage.close()


def collector_of(
    config: WrapperConfig,
    source: Source,
    clips: ClipSource,
    ledger: Ledger,
    parts: contextlib.ExitStack,
    seed: int,
) -> Collector:
    """Create the label collector: a scripted teacher, or a collector that asks people."""
    if config.synthetic_prefs or not config.collect_prefs:
        judge = config.judge
        if isinstance(judge, str):
            error_model = ErrorModel.parse(judge, "judge")
            judge = scripted_judge(error_model, config.seed, ledger, feedback=config.feedback)
        return SyntheticTeacher(ledger, seed, judge)
    if config.people != "site":
        terminal = terminal_descriptor() if config.people == "terminal" else None
        prompt = PromptCollector(ledger, clips.frames, config.logs, source.fps, terminal)
        return parts.enter_context(contextlib.closing(prompt))
    site = open_site(config.site, ledger, parts)
    settings = ExperimentSettings(
        name=config.site.name or f"{slug(source.env_id)}-{slug(config.logs.resolve().name)}",
        run_id=run_id_in(config.logs),
        env_id=source.env_id,
        prompt=config.site.prompt,
        n_labels=config.n_prefs,
        fps=source.fps,
        has_true_reward=True,
        lowest_rating=config.site.lowest_rating,
        highest_rating=config.site.highest_rating,
        feedback=config.feedback,
    )
    renderer = clips if clips.mode == "replay" else None  # the default renderer can encode captured frames
    collector = ask_people(site, ledger, settings, parts, renderer=renderer)
    notice = (f"Label and watch here: {collector.experiment.url}", *about_lost(collector))
    print(*notice, sep="\n", flush=True)
    return collector


def run_id_in(logs: Path) -> uuid.UUID:
    """Read the run ID stored in ``log_dir``; create it if missing.

    The site uses this ID to find the experiment of an earlier run with the same ``log_dir``.
    """
    path = logs / _RUN_ID_NAME
    if not path.exists():
        with atomic_write(path) as file:
            file.write(str(uuid.uuid4()).encode())
    try:
        return uuid.UUID(path.read_text())
    except ValueError as error:
        raise DataError(
            f"{path} is damaged: it should contain a run ID; choose a different log_dir"
        ) from error
