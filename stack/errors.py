"""Errors that the command line reports in one line."""


class StackError(Exception):
    """The stack cannot start or continue; the message says why and what to do."""
