#!/usr/bin/env python
"""The labeling site's command line, for a checkout and for containers; elsewhere, use ``teach site``."""

from human_feedback_site.manage import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
