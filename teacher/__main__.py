"""The command ``teach``, of which a Ctrl-C is understood before its libraries are loaded."""

import sys

from teacher.settings.arguments import INTERRUPTED


def main() -> int:
    """Run :func:`teacher.teach.main`; returns the exit status."""
    try:
        from teacher.teach import main as teach  # noqa: PLC0415 - torch and MuJoCo take seconds
    except KeyboardInterrupt:
        print("teach: interrupted before anything began", file=sys.stderr)
        return INTERRUPTED
    return teach()


if __name__ == "__main__":
    sys.exit(main())
