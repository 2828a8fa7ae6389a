"""Clips: replay an episode, check it, draw it and encode it, here or in a pool of processes."""

from teacher.clips.pool import ClipRenderer
from teacher.clips.render import CLIP_SIZE, ClipJob, ClipSpec, render

__all__ = ["CLIP_SIZE", "ClipJob", "ClipRenderer", "ClipSpec", "render"]
