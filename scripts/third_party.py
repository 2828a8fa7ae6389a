"""Write docs/third-party.csv: licenses of the distributions in constraints.txt, and what installs them.

It reads the installed distributions. Install those that are not in ``.venv`` into a folder and pass it::

    .venv/bin/pip install --no-deps --target FOLDER NAME==VERSION ...
    .venv/bin/python scripts/third_party.py FOLDER
"""

import csv
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "third-party.csv"
IMAGES = ("site", "render", "trainer")
CLASSIFIER = "License :: OSI Approved :: "
HEADER = ["distribution", "license", "installed by"]
UNSTATED = {
    "axe-playwright-python": "MIT; axe-core: MPL-2.0",
    "imageio-ffmpeg": "ffmpeg: GPL-3.0-or-later",
    "promql-parser": "MIT",
}
"""Licenses that only files in the wheel state."""


def license_of(distribution: Distribution) -> str:
    """Return the license that a distribution's metadata states, in its words."""
    about = distribution.metadata.json
    classifiers = [each.removeprefix(CLASSIFIER) for each in about.get("classifier", [])]
    named = [each for each in classifiers if "::" not in each and each.endswith(("License", ")"))]
    text = str(about.get("license", "")).strip()
    short = text if text and len(text) < 60 and "\n" not in text and text != "UNKNOWN" else ""
    return str(about.get("license_expression", "")) or short or "; ".join(named)


def installed(folder: str | None = None) -> dict[str, Distribution]:
    """Return the installed distributions by canonical name, with those in a folder."""
    found = [*(distributions(path=[folder]) if folder else ()), *distributions()]
    return {canonicalize_name(each.name): each for each in reversed(found)}


def names_of_pins() -> list[str]:
    """Return the names in constraints.txt."""
    return [line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]


def roots() -> Iterator[tuple[str, list[str]]]:
    """Yield who installs which requirements: images, the project itself, then its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for image in IMAGES:
        text = (ROOT / f"docker/requirements-{image}.txt").read_text()
        included = re.findall(r"^--requirement requirements-(\w+)\.txt$", text, re.MULTILINE)
        texts = [text, *((ROOT / f"docker/requirements-{each}.txt").read_text() for each in included)]
        yield f"{image} image", [line for each in texts for line in each.splitlines() if line[:1].isalpha()]
    yield "rl-teacher", project["dependencies"]
    yield from project["optional-dependencies"].items()


def required_by(needs: list[str], known: dict[str, Distribution]) -> set[str]:
    """Return the canonical names of requirements and of all that those require in turn."""
    seen: set[tuple[str, str]] = set()
    left = [Requirement(each) for each in needs]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            needed = map(Requirement, known[name].requires or ()) if name in known else ()
            left += [each for each in needed if is_needed(each, extra)]
    return {name for name, _ in seen}


def is_needed(requirement: Requirement, extra: str) -> bool:
    """By this Python or the oldest."""
    marker = requirement.marker
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0"}
    return marker is None or any(marker.evaluate({"extra": extra, **python}) for python in ({}, oldest))


def shortened(users: list[str]) -> str:
    """Join them, without extras if the project itself installs a distribution, and ``dev`` if others do."""
    kept = [each for each in users if each != "dev"] or ["dev"]
    return ", ".join(each for each in kept if each == "rl-teacher" or " " in each or "rl-teacher" not in kept)


def licenses(known: dict[str, Distribution]) -> dict[str, str]:
    """Return the licenses of the pinned distributions that are installed, by name."""
    pinned = ((name, known.get(canonicalize_name(name))) for name in names_of_pins())
    stated = {name: [license_of(found), UNSTATED.get(name, "")] for name, found in pinned if found}
    return {name: "; ".join(filter(None, both)) for name, both in stated.items()}


def main(arguments: list[str]) -> None:
    """Write the table."""
    known = installed(*arguments)
    stated = licenses(known)
    if missing := [name for name in names_of_pins() if name not in stated]:
        sys.exit(f"expected all distributions of constraints.txt; not installed: {' '.join(missing)}")
    users = [(user, required_by(needs, known)) for user, needs in roots()]
    with TABLE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEADER)
        for name in sorted(stated, key=str.lower):
            mine = [user for user, names in users if canonicalize_name(name) in names]
            table.writerow([name, stated[name], shortened(mine)])


if __name__ == "__main__":
    main(sys.argv[1:])
