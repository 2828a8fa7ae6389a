"""Clips: replay an episode, check it, draw it and encode it, here or in a pool of processes."""

from teacher.clips.pool import ClipRenderer
from teacher.clips.render import CLIP_SIZE, render_episode, render_segment

__all__ = ["CLIP_SIZE", "ClipRenderer", "render_episode", "render_segment"]
