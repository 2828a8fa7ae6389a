"""Look for known weaknesses of every pinned dependency, with pip-audit.

    python scripts/audit.py .venv/audit/bin/pip-audit            fails where there is one
    python scripts/audit.py --strict .venv/audit/bin/pip-audit   also where not all could be asked about

Who knows of weaknesses is a service on the network, which not every machine reaches: then it is said loudly
that nothing is known.
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
    """What pip-audit knows of each dependency; empty where it could not ask at all."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"]
    options += ["--requirement", str(PINS)]
    try:
        asked = subprocess.run([pip_audit, *options], capture_output=True, text=True, check=False)
    except OSError as error:  # it could not be installed
        print(error, file=sys.stderr)
        return []
    try:
        dependencies: Sequence[dict[str, Any]] = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        print(asked.stderr.strip().rpartition("\n")[2], file=sys.stderr)
        return []
    return dependencies


def report(dependencies: Sequence[dict[str, Any]], *, strict: bool) -> int:
    """Say what is known; the exit status."""
    weak = [(each, weakness) for each in dependencies for weakness in each.get("vulns", ())]
    for each, weakness in weak:
        mended = ", ".join(weakness["fix_versions"]) or "no version yet"
        print(f"audit: {each['name']} {each['version']} has {weakness['id']}, mended in {mended}")
    unknown = [each["name"] for each in dependencies if "skip_reason" in each]
    known = len(dependencies) - len(unknown)
    if unknown or not dependencies:
        named = f": {', '.join(unknown)}" if known else ""
        print(f"audit: NOT KNOWN of {len(unknown) or 'all'} dependencies, as the service has not told{named}")
    else:
        print(f"audit: {known} dependencies, {len(weak)} known weaknesses")
    return 1 if weak or (strict and (unknown or not dependencies)) else 0


def main() -> int:
    """Ask, and tell; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strict", action="store_true", help="fail where not all could be asked about")
    parser.add_argument("pip_audit", help="the program")
    given = parser.parse_args()
    return report(ask(given.pip_audit), strict=given.strict)


if __name__ == "__main__":
    sys.exit(main())
