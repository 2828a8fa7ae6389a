"""Warnings that are given once, however often there is reason."""

import logging


class WarnOnce:
    """Remembers what was warned of."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __contains__(self, about: str) -> bool:
        return about in self._given

    def __call__(self, log: logging.Logger, about: str, warning: str) -> None:
        """Warn, unless a warning about the same topic was given before."""
        if about not in self._given:
            self._given.add(about)
            log.warning(warning)
