"""Exception that the command line prints as a one-line message."""


class StackError(Exception):
    """The stack can't start or continue; the message says why and what to do."""
