"""Read the commands and programs in the documents."""

import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "docs", "docs/benchmarks", "examples")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
README = ROOT / "README.md"
_ASSIGNMENTS = re.compile(r"^(?:[A-Z_]+=\S+ )+")


def page_of(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def blocks_of(page: Path, *languages: str) -> list[str]:
    """The blocks of a page in some languages; the empty one is that of blocks which name none."""
    blocks = re.findall(r"^```([a-z]*).*?\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if language in languages]


def commands_of(page: Path) -> Iterator[str]:
    """The lines of its blocks that begin with a program of ours, without variables and comments."""
    for block in blocks_of(page, "", "sh", "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            command = _ASSIGNMENTS.sub("", line.strip().removeprefix("$ "))
            if re.match(r"(teach|make|python\d?|docker compose) ", command):
                yield re.sub(r"\s#.*", "", command).strip()


def run_programs(page: Path, folder: Path, shorter: Mapping[str, str] | None = None) -> None:
    """Run the programs of a page in this process, one after the other, as if they were one file.

    Args:
        page: the page.
        folder: where the file is written; the programs use the current one.
        shorter: what stands in the programs, and what to run instead to be done sooner.
    """
    program = "\n".join(blocks_of(page, "python"))
    for given, instead in (shorter or {}).items():
        assert program.count(given) == 1, f"{page.name}: {given}"
        program = program.replace(given, instead)
    run_program(program, folder / f"{page.stem}.py")


def run_program(program: str, path: Path) -> None:
    """Write a program to a file and run it in this process."""
    path.write_text(program)
    runpy.run_path(str(path), run_name="__main__")
