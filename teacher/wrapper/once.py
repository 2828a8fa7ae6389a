"""Warnings that are logged only once."""

import logging


class WarnOnce:
    """Logs at most one warning per topic.

    ``topic in warn_once`` is True if a warning on the topic has been logged.
    """

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __contains__(self, about: str) -> bool:
        return about in self._given

    def __call__(self, log: logging.Logger, about: str, warning: str) -> None:
        """Log ``warning`` unless a warning on the topic ``about`` has been logged before."""
        if about not in self._given:
            self._given.add(about)
            log.warning(warning)
