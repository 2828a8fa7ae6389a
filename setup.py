"""Long description for package pages: README.md with links that work outside of the repository."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def package_page(readme: str, project: Mapping[str, object]) -> str:
    """Return README.md with absolute links and pictures.

    They lead to the release's tag in the repository, the URL ``Source`` in ``[project.urls]``. Without one,
    links become plain text, and pictures are left out.
    """
    urls = project.get("urls")
    source = urls.get("Source") if isinstance(urls, dict) else None

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if source is None:
            return "" if picture else text
        return f"{picture}[{text}]({source}/{'raw' if picture else 'blob'}/v{project['version']}/{path})"

    return LINK.sub(absolute, readme)


if __name__ == "__main__":
    from setuptools import setup

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=package_page(readme, project),
        long_description_content_type="text/markdown",
    )
