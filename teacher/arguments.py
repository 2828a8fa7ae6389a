"""What the command lines have in common: a refusal is one line, and Ctrl-C has its own exit status."""

import argparse
from typing import NoReturn

INTERRUPTED = 130


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text.

    The line begins with the name of the program or module, the last word of ``prog``.
    """

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        name = self.prog.split()[-1].rpartition(".")[2]
        self.exit(2, f"{name}: {message} ({self.prog} --help lists all settings)\n")
