"""Main program of :class:`ClipRenderer`'s rendering processes.

Usage: ``python -m teacher.clips.worker FILE_DESCRIPTOR``, where the file descriptor is a socket to the parent
process. Each request and response is a JSON object. The first response, ``{}``, means that the process is
ready. The process exits when the socket closes, which means that the parent has ended.
"""

import json
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from teacher.clips.encode import encode
from teacher.clips.render import ClipSpec, ReplayRenderer, captured
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.registry import register_again
from teacher.errors import ReplayMismatchError, TeacherError, describe_exception

Request = dict[str, Any]


def main(descriptor: int) -> None:
    """Render requested clips one by one until the parent closes the socket."""
    connection = Connection(descriptor)
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    renderers = _Renderers()
    connection.send_bytes(b"{}")
    while True:
        connection.send_bytes(json.dumps(_answer(renderers, requests.get())).encode())


def _listen(connection: Connection, requests: "queue.SimpleQueue[Request]") -> None:
    while True:
        try:
            requests.put(json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            # The process group has only this process and its ffmpeg, if any. This also ends a hung render.
            os.killpg(os.getpgrp(), signal.SIGKILL)


def _answer(renderers: "_Renderers", request: Request) -> dict[str, str]:
    try:
        spec = ClipSpec.from_dict(request["shot"])
        if "registration" in request:
            register_again(request["registration"])
        renderer = None if spec.frames is not None else renderers.open(spec.recipe, request["size"])
        frames = captured(spec.frames or ()) if renderer is None else renderer.frames(spec)
        encode(frames, Path(request["path"]), request["fps"], request["size"])
    except Exception as error:  # an environment may raise anything; the parent handles it
        renderers.close()
        if isinstance(error, ReplayMismatchError):
            return {"mismatch": str(error)}
        return {"error": str(error) if isinstance(error, TeacherError) else describe_exception(error)}
    return {} if renderer is None else {"note": renderer.note}


class _Renderers:
    """Cache that keeps one renderer open, because creating an OpenGL context takes 0.2 s."""

    def __init__(self) -> None:
        self._key = ""
        self._last: ReplayRenderer | None = None

    def open(self, recipe: EpisodeRecipe, size: int) -> ReplayRenderer:
        """Return the cached renderer if it has the same environment and size, or else open a new one."""
        key = json.dumps([recipe.env_id, dict(recipe.kwargs), size], sort_keys=True)
        if self._last is None or key != self._key:
            self.close()
            self._last, self._key = ReplayRenderer(recipe.env_id, recipe.kwargs, size), key
        return self._last

    def close(self) -> None:
        """Close the cached renderer, if any."""
        last, self._last = self._last, None
        if last is not None:
            last.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
