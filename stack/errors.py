"""What the command line reports in one line."""


class StackError(Exception):
    """The stack cannot start or go on; the message says why and what to do."""
