"""Check which packages Python finds under the project's names, and which version of the project they are."""

import ast
import importlib.metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from teacher.errors import ConfigError

DISTRIBUTION = "rl-teacher"
ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds ``teacher`` and must hold ``agents``: a checkout or ``site-packages``."""
_ENTRY_POINT = "attach_stub"  # called in our agents/__init__.py and nowhere in openai-agents


def installed_version() -> str:
    """Return the version of the installed distribution, or ``unknown`` where there is none."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def check_agents() -> None:
    """Refuse a package ``agents`` of another distribution, such as openai-agents.

    The package is found but not imported: the check takes less than a millisecond and runs no foreign code.

    Raises:
        ConfigError: another package is found first, or another distribution replaced our files.
    """
    spec = find_spec("agents")
    found = _location(spec)
    if found == ROOT / "agents" and _is_ours(found / "__init__.py"):
        return
    if spec is None or found == ROOT / "agents":
        problem = f"found {'none' if spec is None else f'its files replaced{_owner()}'}"
        remedy = "install RL-Teacher again, in a virtual environment of its own"
    else:
        problem = f"found {found}{_owner()}"
        remedy = "run teach where that is not on Python's path, or in a virtual environment of its own"
    raise ConfigError(f"expected RL-Teacher's package agents in {ROOT}, {problem}; {remedy}")


def _location(spec: ModuleSpec | None) -> Path | None:
    """Return the folder of a package or the file of a module; None where there is neither."""
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or [spec.origin or "built-in"]
    return Path(places[0]).resolve()


def _is_ours(path: Path) -> bool:
    """Return whether ``__init__.py`` is RL-Teacher's, which does nothing but load names lazily."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.Attribute) and node.attr == _ENTRY_POINT for node in ast.walk(tree))


def _owner() -> str:
    """Name the other distributions that install a package ``agents``, if any."""
    owners = set(importlib.metadata.packages_distributions().get("agents", ())) - {DISTRIBUTION}
    return f" by {', '.join(sorted(owners))}" if owners else ""
