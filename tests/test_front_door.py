"""Test what programs import: the names of ``teacher`` and ``agents``, each loaded when it is first used."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, blocks_of, page_of

PACKAGES = ("agents", "teacher")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def programs() -> Iterator[tuple[Path, str]]:
    """Return what users read: each with the file it is in."""
    for page in PAGES:
        yield from ((page, block) for block in blocks_of(page, "python"))
    for path in EXAMPLES:
        yield path, path.read_text()


def imports_of(program: str) -> Iterator[tuple[str, list[str]]]:
    """The modules of this project that it imports, and what of each."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES]
            yield from ((module, []) for module in modules)


def test_documents_and_examples_import_from_the_packages_alone() -> None:
    found = [(path.name, *imported) for path, program in programs() for imported in imports_of(program)]
    assert [one for one in found if one[1] not in PACKAGES] == []
    assert {module for _, module, _ in found} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_documentation_lists_what_can_be_imported(package: str) -> None:
    [line] = re.findall(rf"^- `{package}`: (.*)$", page_of("python-api").read_text(), re.MULTILINE)
    listed = re.findall(r"`(\w+)`", line)
    module = import_module(package)
    assert sorted(listed) == sorted(module.__all__)
    for name in listed:
        assert getattr(module, name).__module__.split(".")[0] in PACKAGES
    assert set(listed) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_large_is_loaded_before_it_is_used(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGER_IMPORT", "1")  # for lazy_loader in other packages
    program = f"import sys, {package}; print(*{{'torch', 'gymnasium', 'numpy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_other_names_are_unknown(package: str) -> None:
    with pytest.raises(AttributeError, match=f"No {package} attribute nothing"):
        import_module(package).nothing  # noqa: B018
