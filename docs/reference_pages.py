"""Generators of the reference pages: REST API, Python API and settings."""

import dataclasses
import json
import logging
import os
import subprocess
import sys
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from docs.result_pages import result_pages
from teacher.cli.agent_options import agent_fields
from teacher.settings.addresses import SiteSettings
from teacher.settings.config import NO_OPTIONS, PARTS, TeachConfig
from teacher.wrapper.settings import WrapperConfig

Schema = Mapping[str, Any]

ROOT = Path(__file__).parents[1]

_ABOUT_REST = """\
# REST API

Generated from the site's OpenAPI schema. A running site serves it at `/api/docs/`, and the schema at
`/api/schema/`. [The guide to the API](../api.md) explains roles, guarantees and errors.
"""
_ABOUT_SETTINGS = """\
# All settings

Options of `teach`, which are also the fields of `TeachConfig` and its parts. `teach --help-all` prints them,
and `teach --version` prints the version. A flag without a value turns a feature on. `teach --resume RUN`
reuses all options of the earlier run. It accepts only `-t` and `-l`, to extend the run, and `--reopen`, if
the experiment was finished on the site. `--yes` runs [the corrected
command](../environments.md#if-the-first-command-is-refused) without asking if a setting is refused.

`--config FILE` reads options from a TOML file under the same names, with a table for each part (`[reward]`,
`[queries]`, and `[agent]`, whose `name` is the algorithm). The command line overrides the file.
"""

PYTHON_API: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "runs": (
        "Runs",
        {
            "teacher.training.builder": "open_run",
            "teacher.training.loop": "",
            "teacher.training.run": "",
            "teacher.settings.presets": "from_options",
            "teacher.settings.config_files": "load_config, save_config",
            "teacher.queries.schedules": "",
        },
    ),
    "wrapper": (
        "The wrapper for other libraries",
        {
            "teacher.wrapper.single": "",
            "teacher.wrapper.vector": "",
            "teacher.wrapper.controls": "Controls",
            "teacher.envs.horizon": "FixedHorizon",
            "teacher.wrapper.settings": "",
        },
    ),
    "answers": (
        "Segments, labels and scripted teachers",
        {
            "teacher.envs.trajectory": "",
            "teacher.data.segments": "",
            "teacher.data.segment_pool": "",
            "teacher.data.steps": "",
            "teacher.queries.judges": "",
            "teacher.settings.teachers": "",
            "teacher.behaviors": "",
            "teacher.data.preferences": "",
            "teacher.datasets.preference_files": "",
            "teacher.queries.selection": "",
        },
    ),
    "predictor": (
        "The reward predictor",
        {
            "teacher.reward.predictor": "",
            "teacher.reward.network": "",
            "teacher.reward.modules": "",
            "teacher.reward.loss": "PreferenceLoss",
            "teacher.reward.features": "",
            "teacher.reward.images": "",
            "teacher.reward.report": "",
            "agents.numerics.correlation": "",
            "teacher.datasets.predictor_files": "",
        },
    ),
    "offline": (
        "Offline reward learning",
        {
            "teacher.queries.offline": "",
            "teacher.reward.evaluation": "",
            "teacher.datasets.trajectories.recording": "Recording, as_demonstrations",
            "teacher.datasets.trajectories.files": "",
            "teacher.data.demonstrations.episodes": "",
            "teacher.data.demonstrations.recording": "",
            "teacher.data.demonstrations.files": "",
            "teacher.data.demonstrations.plots": "",
        },
    ),
    "environments": (
        "Environments and clips",
        {
            "teacher.envs.tasks": "",
            "teacher.envs.recipe": "",
            "teacher.envs.episodes": "",
            "teacher.envs.random_episodes": "",
            "teacher.envs.collect": "",
            "teacher.clips.render": "",
            "teacher.clips.encode": "",
        },
    ),
    "site": (
        "Clients of the labeling site",
        {"teacher.labeling.client": "", "teacher.labeling.bots": "Bot", "teacher.storage": ""},
    ),
    "agents": (
        "Agents",
        {
            "agents.ppo": "",
            "agents.trpo": "",
            "agents.sac": "",
            "agents.sac_step": "SACConfig",
            "agents.replay": "",
            "agents.base": "",
            "agents.on_policy": "",
            "agents.rollout": "",
            "agents.policy": "",
            "agents.heads": "",
            "agents.normalize": "",
            "agents.cloning": "",
            "agents.distributed": "",
        },
    ),
    "errors": ("Errors", {"teacher.errors": "", "agents.errors": ""}),
}
"""Title and modules by page name; a module maps to the members to document, empty for all public ones."""


def generated_pages() -> dict[str, str]:
    """Return the Markdown of all generated pages by name."""
    api = {f"python-{name}": python_page(*page) for name, page in PYTHON_API.items()}
    api["python-wrapper"] += wrapper_arguments()
    return {"rest": rest_page(openapi_schema()), "settings": settings_page(), **api, **result_pages()}


def python_page(title: str, modules: Mapping[str, str]) -> str:
    """Return a page with a heading and an autodoc directive for each module."""
    lines = [f"# {title}", ""]
    for module, members in modules.items():
        lines += [f"## {module}", "", "```{eval-rst}"]
        lines += [f".. automodule:: {module}", f"   :members: {members}".rstrip(), "```", ""]
    return "\n".join(lines)


def wrapper_arguments() -> str:
    """Return a table of the wrapper's arguments with their defaults."""
    hints = typing.get_type_hints(WrapperConfig, include_extras=True)
    lines = ["## Arguments", "", "| argument | | default |", "|---|---|---|"]
    for field in dataclasses.fields(WrapperConfig):
        value: Any = field.default
        if field.name.endswith("log_level"):
            value = logging.getLevelName(value)
        default = "" if value is dataclasses.MISSING else f"`{value}`"
        lines.append(f"| `{field.name}` | {_cell(get_args(hints[field.name])[1])} | {default} |")
    return "\n".join([*lines, ""])


def openapi_schema() -> Schema:
    """Return the site's OpenAPI schema; doesn't need a database or network."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schema.json"
        command = [
            sys.executable,
            "manage.py",
            "spectacular",
            "--format",
            "openapi-json",
            "--file",
            str(path),
        ]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "TEACHER_STATE_DIR": folder})
        schema: Schema = json.loads(path.read_text())
    return schema


def rest_page(schema: Schema) -> str:
    """Return the page of all endpoints with their request and response bodies, followed by all objects."""
    lines = [_ABOUT_REST]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            lines += _operation(f"{method.upper()} {path}", operation)
    lines += ["## Objects", ""]
    for name, content in schema["components"]["schemas"].items():
        lines += _object(name, content)
    return "\n".join(lines)


def _operation(title: str, operation: Schema) -> Iterator[str]:
    yield from (f"## `{title}`", "", operation.get("description", ""), "")
    parameters = [each for each in operation.get("parameters", []) if each["in"] != "path"]
    if parameters:
        yield from ("| query parameter | type | |", "| --- | --- | --- |")
        yield from (
            f"| `{each['name']}` | {_kind(each['schema'])} | {_cell(each.get('description', ''))} |"
            for each in parameters
        )
        yield ""
    if "requestBody" in operation:
        yield from _content("Request body:", operation["requestBody"]["content"])
    for status, answer in operation["responses"].items():
        if status < "400":
            yield from _content(f"Response {status}:", answer.get("content", {}))
    refusals = {status: each for status, each in operation["responses"].items() if status >= "400"}
    if refusals:
        yield from ("| error | |", "| --- | --- |")
        yield from (f"| {status} | {_cell(each['description'])} |" for status, each in refusals.items())
        yield ""


def _content(what: str, content: Schema) -> Iterator[str]:
    if not content:
        yield from (f"{what} empty", "")
    for media_type, form in content.items():
        yield from (f"{what} {_kind(form['schema'])} as `{media_type}`", "")
        for example in form.get("examples", {}).values():
            yield from ("```json", json.dumps(example["value"], indent=2), "```", "")


def _object(name: str, content: Schema) -> Iterator[str]:
    yield from (f"### {name}", "", content.get("description", "").replace("\n", "\n\n"), "")
    if "properties" not in content:
        yield from (_kind(content), "")
        return
    required = content.get("required", [])
    yield from ("| | type | |", "| --- | --- | --- |")
    for field, form in content["properties"].items():
        optional = "" if field in required else "optional; "
        yield f"| `{field}` | {_kind(form)} | {optional}{_cell(form.get('description', ''))} |"
    yield ""


def _kind(form: Schema) -> str:
    """Return the type of a value as Markdown, with a link if it is an object on the page."""
    if "$ref" in form:
        name = form["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    alternatives = [*form.get("oneOf", ()), *form.get("allOf", ()), *form.get("anyOf", ())]
    if alternatives:
        return " or ".join(map(_kind, alternatives))
    if "enum" in form:
        return ", ".join(f"`{json.dumps(value)}`" for value in form["enum"])
    if form.get("type") == "array":
        return f"list of {_kind(form['items'])}"
    kinds = form.get("type", "anything")
    kind = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    return f"{kind} ({form['format']})" if "format" in form else kind


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def settings_page() -> str:
    """Return the page with a table of ``teach`` options and one for each of their parts."""
    lines = [_ABOUT_SETTINGS, *_options(TeachConfig)]
    lines += [
        "",
        "## `--agent.…`",
        "",
        "The defaults depend on the task; `teach defaults ENV` shows them.",
        "",
    ]
    lines += ["| option | |", "| --- | --- |"]
    lines += [f"| `--agent.{name}` | {_cell(text)} |" for name, (_, text) in agent_fields().items()]
    for part, kind in PARTS.items():
        lines += ["", f"## `--{part}.…`", "", *_options(kind, f"{part}.")]
    return "\n".join([*lines, ""])


def _options(settings: type, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(settings, include_extras=True)
    yield from ("| option | | value | default |", "| --- | --- | --- | --- |")
    of_site = SiteSettings.__dataclass_fields__
    for field in sorted(dataclasses.fields(settings), key=lambda field: field.name in of_site):
        if field.name not in NO_OPTIONS:
            kind, help_text, *others = get_args(hints[field.name])
            flags = [f"--{prefix}{field.name}", *(flag for flag in others if isinstance(flag, str))]
            default = "" if field.default in (dataclasses.MISSING, None, False) else f"`{field.default}`"
            names = " ".join(f"`{flag}`" for flag in flags)
            yield f"| {names} | {_cell(help_text)} | {_values(kind)} | {default} |"


def _values(kind: Any) -> str:
    if get_origin(kind) in (types.UnionType, typing.Union):
        return _values(next(choice for choice in get_args(kind) if choice is not types.NoneType))
    if get_origin(kind) is Literal:
        return " ".join(f"`{value}`" for value in get_args(kind))
    names: Mapping[Any, str] = {bool: "", int: "whole number", float: "number", str: "text"}
    return names[kind]
