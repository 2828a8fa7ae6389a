"""Check all pinned dependencies for known vulnerabilities with pip-audit.

    python scripts/audit.py .venv/audit/bin/pip-audit            fail if there are vulnerabilities
    python scripts/audit.py --strict .venv/audit/bin/pip-audit   also fail if a dependency can't be checked

pip-audit needs network access to a vulnerability service. Without it, prints NOT CHECKED.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"


def ask(pip_audit: str) -> Sequence[dict[str, Any]]:
    """Run pip-audit and return its entry for each dependency; empty if it failed."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"]
    options += ["--requirement", str(PINS)]
    try:
        asked = subprocess.run([pip_audit, *options], capture_output=True, text=True, check=False)
    except OSError as error:  # pip-audit isn't installed
        print(error, file=sys.stderr)
        return []
    try:
        dependencies: Sequence[dict[str, Any]] = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        print(asked.stderr.strip().rpartition("\n")[2], file=sys.stderr)
        return []
    return dependencies


def report(dependencies: Sequence[dict[str, Any]], *, strict: bool) -> int:
    """Print the vulnerabilities and the dependencies that weren't checked; return the exit status."""
    weak = [(each, weakness) for each in dependencies for weakness in each.get("vulns", ())]
    for each, weakness in weak:
        fixed = ", ".join(weakness["fix_versions"]) or "no version yet"
        print(f"audit: {each['name']} {each['version']} has {weakness['id']}, fixed in {fixed}")
    unknown = [each["name"] for each in dependencies if "skip_reason" in each]
    known = len(dependencies) - len(unknown)
    if unknown or not dependencies:
        named = f": {', '.join(unknown)}" if known else ""
        print(f"audit: NOT CHECKED: {len(unknown) or 'all'} dependencies, as pip-audit had no answer{named}")
    else:
        print(f"audit: {known} dependencies, {len(weak)} known vulnerabilities")
    return 1 if weak or (strict and (unknown or not dependencies)) else 0


def main() -> int:
    """Run pip-audit, print the report, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strict", action="store_true", help="also fail if a dependency can't be checked")
    parser.add_argument("pip_audit", help="path of the pip-audit program")
    given = parser.parse_args()
    return report(ask(given.pip_audit), strict=given.strict)


if __name__ == "__main__":
    sys.exit(main())
