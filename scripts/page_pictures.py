"""Take screenshots of every page of the site: wide and narrow, light and dark, empty and full.

    python -m scripts.page_pictures              # all sheets
    python -m scripts.page_pictures login home-labeler

Starts the run and labelers of ``site_pictures.py`` and saves a sheet per page with its four looks side by
side. The content is real: one experiment with labels, and one without. States of the labeling page such as
paused, finished or failed attention checks are set up for their screenshots.
"""

import argparse
import re
from pathlib import Path

from scripts.sheets.admin import make_admin_sheets
from scripts.sheets.album import SHEETS, Album
from scripts.sheets.empty import make_empty_sheets
from scripts.sheets.joining import make_invitation_sheets
from scripts.sheets.labeling import make_end_sheets, make_labeler_sheets
from scripts.sheets.researcher import make_researcher_sheets
from scripts.site_pictures import label, run, until_answered

PAGES = Path(__file__).parents[1] / "docs" / "pages.md"
ANSWERED = 60  # answered comparisons needed for the full pages


def main() -> None:
    """Start the run, have it labeled, and make the sheets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sheets", nargs="*", help="names of the sheets to make (default: all)")
    names = parser.parse_args().sheets
    listed = re.findall(r"\(pictures/pages/([^)]+)\.webp\)", PAGES.read_text())
    for name in names:
        if name not in listed:
            parser.error(f"docs/pages.md must list the sheet, but lists none called {name!r}; check the name")
    with run() as world:
        album = Album(world, names)
        make_empty_sheets(album)
        resting = label(world)
        until_answered(world, ANSWERED)
        resting.set()
        for make in (
            make_researcher_sheets,
            make_admin_sheets,
            make_invitation_sheets,
            make_labeler_sheets,
            make_end_sheets,
        ):
            make(album)
    print(f"{len(names or listed)} sheets in {SHEETS}")


if __name__ == "__main__":
    main()
