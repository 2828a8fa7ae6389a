"""Warnings that are logged only once."""

import logging


class WarnOnce:
    """Logs one warning per topic."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __contains__(self, about: str) -> bool:
        return about in self._given

    def __call__(self, log: logging.Logger, about: str, warning: str) -> None:
        """Log a warning unless one about the same topic was logged already."""
        if about not in self._given:
            self._given.add(about)
            log.warning(warning)
