"""Entry point of the ``teach`` command, which handles Ctrl-C even while libraries are loading."""

import sys

from teacher.platforms import UNSUPPORTED
from teacher.settings.arguments import INTERRUPTED


def main() -> int:
    """Run :func:`teacher.teach.main` and return the exit status."""
    if sys.platform == "win32":
        print(f"teach: {UNSUPPORTED}", file=sys.stderr)
        return 2
    try:
        from teacher.teach import main as teach  # noqa: PLC0415 - torch and MuJoCo take seconds
    except KeyboardInterrupt:
        print("teach: interrupted before training started", file=sys.stderr)
        return INTERRUPTED
    return teach()


if __name__ == "__main__":
    sys.exit(main())
