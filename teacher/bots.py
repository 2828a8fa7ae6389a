"""Entry point for scripted labelers.

Usage: ``python -m teacher.bots --site URL --experiment NAME --token-file FILE``.
"""

import sys

from teacher.labeling.bots import main

if __name__ == "__main__":
    sys.exit(main())
