"""Upload of the newest episode video to the clip store, for labelers to watch."""

import logging
import threading
from pathlib import Path

from teacher.errors import SiteRefusedError
from teacher.labeling.client import FeedbackClient
from teacher.storage import Storage

_log = logging.getLogger(__name__)


class EpisodeVideoUploader:
    """Uploads the newest episode video to the clip store and announces it to the site.

    :meth:`offer` is thread-safe; the other methods are not.
    """

    def __init__(self, experiment: str, storage: Storage, client: FeedbackClient) -> None:
        self._experiment = experiment
        self._storage = storage
        self._client = client
        self._lock = threading.Lock()
        self._offered: tuple[Path, int] | None = None
        self._uploaded: int | None = None

    def offer(self, video: Path, step: int) -> None:
        """Queue a video recorded at environment step ``step``, replacing the queued one, if any."""
        with self._lock:
            self._offered = (video, step)

    def upload(self) -> None:
        """Upload the queued video, if any.

        Raises:
            StorageError: the clip store can't be written; the video stays queued.
        """
        with self._lock:
            offered = self._offered
        if offered is None:
            return
        video, step = offered
        if video.exists():  # the user may have deleted the file
            self._storage.put(self._key(step), video)
            self._uploaded = step
        with self._lock:
            if self._offered == offered:
                self._offered = None

    def announce(self) -> None:
        """Announce the last uploaded video to the site, unless it has already been announced.

        If the site refuses the video, log a warning.

        Raises:
            SiteUnreachableError: the site is unreachable; the next call tries again.
        """
        if self._uploaded is None:
            return
        try:
            self._client.add_episode(self._experiment, self._uploaded, self._key(self._uploaded))
        except SiteRefusedError as error:
            _log.warning("the site refused an episode video, so labelers can't watch it: %s", error)
        self._uploaded = None

    def _key(self, step: int) -> str:
        return f"{self._experiment}/episodes/{step}.mp4"
