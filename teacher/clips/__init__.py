"""Clips: replaying, checking, rendering and encoding episodes, in this process or a pool."""

from teacher.clips.pool import ClipRenderer
from teacher.clips.render import CLIP_SIZE, ClipJob, ClipSpec, render

__all__ = ["CLIP_SIZE", "ClipJob", "ClipRenderer", "ClipSpec", "render"]
