"""Clip rendering: replay an episode, check it against the recording, draw it, and encode a video."""

from teacher.clips.pool import ClipRenderer
from teacher.clips.render import CLIP_SIZE, ClipJob, ClipSpec, render

__all__ = ["CLIP_SIZE", "ClipJob", "ClipRenderer", "ClipSpec", "render"]
