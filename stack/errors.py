"""Exception that the command line reports as one line."""


class StackError(Exception):
    """The stack can't start or continue; the message says why and what to do."""
