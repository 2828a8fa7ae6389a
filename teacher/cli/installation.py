"""Installation checks: RL-Teacher's version, and whether Python would import its ``agents`` package."""

import ast
import importlib.metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from teacher.errors import ConfigError

DISTRIBUTION = "rl-teacher"
ROOT = Path(__file__).resolve().parents[2]
"""Folder that contains ``teacher`` and should contain ``agents``: a Git checkout or ``site-packages``."""
_ENTRY_POINT = "attach_stub"  # called in our agents/__init__.py, but not in openai-agents'


def installed_version() -> str:
    """Return the version of the installed distribution, or ``unknown`` if it isn't installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def check_agents() -> None:
    """Check that ``import agents`` would import RL-Teacher's package.

    Other distributions, such as openai-agents, install a package with the same name. Nothing is
    imported, so the check takes less than a millisecond and runs no third-party code.
    """
    spec = find_spec("agents")
    found = _location(spec)
    if found == ROOT / "agents" and _is_ours(found / "__init__.py"):
        return
    if spec is None or found == ROOT / "agents":
        problem = "is missing" if spec is None else f"was overwritten{_owner()}"
        remedy = "reinstall RL-Teacher in its own virtual environment"
    else:
        problem = f"is hidden by {found}{_owner(' from')}"
        remedy = "remove that from Python's path, or install RL-Teacher in its own virtual environment"
    raise ConfigError(f"RL-Teacher's 'agents' package in {ROOT} {problem}; {remedy}")


def _location(spec: ModuleSpec | None) -> Path | None:
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or [spec.origin or "built-in"]
    return Path(places[0]).resolve()


def _is_ours(path: Path) -> bool:
    """Return True if this ``__init__.py`` is RL-Teacher's, which is recognized by its lazy imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.Attribute) and node.attr == _ENTRY_POINT for node in ast.walk(tree))


def _owner(preposition: str = " by") -> str:
    """Return ``preposition`` and the names of the other distributions that install ``agents``.

    ``preposition`` starts with a space, as in ``" by openai-agents"``. The result is empty if there are no
    other distributions.
    """
    owners = set(importlib.metadata.packages_distributions().get("agents", ())) - {DISTRIBUTION}
    return f"{preposition} {', '.join(sorted(owners))}" if owners else ""
