"""Warnings that are given once, however often there is reason."""

import logging


class Warnings:
    """What was warned of so far."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __contains__(self, about: str) -> bool:
        return about in self._given

    def once(self, log: logging.Logger, about: str, warning: str) -> None:
        """Warn, where nothing was said ``about`` this before."""
        if about not in self._given:
            self._given.add(about)
            log.warning(warning)
