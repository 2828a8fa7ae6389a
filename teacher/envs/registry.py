"""Lookup of environment specs by ID, and their registration in other processes, without torch and MuJoCo."""

import ast
import dataclasses
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from teacher.envs.families import old_names, resolve_env_id
from teacher.envs.suites import SUITES, close_tasks
from teacher.envs.transform import KWARG
from teacher.errors import EnvironmentUnsuitableError, RenderError, describe_exception, one_line
from teacher.extras import ENVIRONMENTS, extra_of
from teacher.settings.functions import add_cwd_to_path


def find_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """Return the registered spec of an environment.

    Args:
        env_id: Gymnasium ID, or ``module:Env-v0`` to import ``module`` first.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            add_cwd_to_path()
            importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may do anything when imported
        extra = extra_of(module)
        remedy = f": pip install 'rl-teacher[{extra}]'" if extra else ""
        raise EnvironmentUnsuitableError(f"can't import {module}: {reason(error)}{remedy}") from error
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        raise EnvironmentUnsuitableError(
            f"no environment is registered as {env_id}; {_hint(module, name)}"
        ) from error


def _hint(module: str, name: str) -> str:
    namespace = name.partition("/")[0]
    if namespace in SUITES:
        close = close_tasks(namespace, name)
        needs = f" (needs pip install 'rl-teacher[{SUITES[namespace].extra}]')"
        is_missing = importlib.util.find_spec(namespace) is None
        other = f"expected an ID such as {SUITES[namespace].example}{needs if is_missing else ''}"
    else:
        of_module = [] if module else [one for start, one in ENVIRONMENTS.items() if name.startswith(start)]
        close = [f"{one}:{name}" for one in of_module]
        close = close or difflib.get_close_matches(name, [*gym.registry, *old_names()], n=3)
        close = [f"{module}:{one}" for one in close] if module else close
        other = "gymnasium.registry lists all IDs"
        other += "" if module else f"; if a module registers it, pass module:{name}"
    return f"did you mean {', '.join(close)}?" if close else other


def reason(error: BaseException) -> str:
    """Describe in one line why importing or making an environment failed.

    For a :class:`SystemExit`, include the type, because its message is just a number or empty.
    """
    return describe_exception(error) if isinstance(error, SystemExit) else one_line(error)


_MAIN = "__main__"
_MAIN_KEYS = ("init_main_from_path", "init_main_from_name")


def registration_of(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what another process needs to make an environment like this process, as a JSON value.

    As with the ``spawn`` method of :mod:`multiprocessing`, a script is imported again in the new process, as
    module ``__mp_main__``. This needs a script that starts its work in ``if __name__ == "__main__":``.

    Raises:
        RenderError: the environment or its transform is defined in a notebook, an interactive session, or a
            script that can't be imported again.
    """
    prefix, _, name = env_id.rpartition(":")
    spec = gym.registry.get(resolve_env_id(name)) if prefix in ("", _MAIN) else None
    transform = str(kwargs.get(KWARG) or "").partition(":")[0]
    module, described = ("", None) if spec is None else _described(spec)
    data: dict[str, Any] = {"id": None if spec is None else spec.id, "module": module, "spec": described}
    if _MAIN in (prefix, module, transform):
        data["main"] = _main_of(name if _MAIN in (prefix, module) else str(kwargs[KWARG]).partition(":")[2])
    return data


def register_again(data: Mapping[str, Any]) -> None:
    """Register an environment from the output of :func:`registration_of`, unless it is registered already."""
    known = gym.registry.get(data["id"])
    if known is not None and _described(known)[1] == data["spec"] and "main" not in data:
        return
    if "main" in data:
        spawn.prepare(data["main"])
    elif data["module"]:
        importlib.import_module(data["module"])
    if data["spec"] is not None:
        gym.registry[data["id"]] = EnvSpec.from_json(data["spec"])
    elif data["id"] is not None and data["id"] not in gym.registry:
        raise RenderError(_advice(data["id"], "a place that other processes can't import"))


def _described(spec: EnvSpec) -> tuple[str, str | None]:
    """Return the module of a spec's entry point, and the spec as JSON; None if it has no JSON form."""
    entry: Any = spec.entry_point
    if callable(entry):
        module, name = getattr(entry, "__module__", ""), getattr(entry, "__qualname__", "")
        entry = f"{module}:{name}" if hasattr(sys.modules.get(module), name) else None
    else:
        module = str(entry or "").partition(":")[0]
    try:
        whole = dataclasses.replace(spec, entry_point=entry, vector_entry_point=None)
        return module, None if entry is None else whole.to_json()
    except (TypeError, ValueError):  # arguments that are not JSON values
        return module, None


def _main_of(name: str) -> dict[str, str]:
    main = sys.modules[_MAIN]
    path = Path(getattr(main, "__file__", None) or "")
    if not path.is_file() or path.name == "ipython":
        where = "a notebook or an interactive session"
    elif _is_guarded(path):
        prepared = spawn.get_preparation_data("")
        return {key: prepared[key] for key in _MAIN_KEYS if key in prepared}
    else:
        where = f'the script {path.name}, which does not start its work in if __name__ == "__main__":'
    raise RenderError(_advice(name, where))


def _is_guarded(path: Path) -> bool:
    body = ast.parse(path.read_bytes()).body
    tests = [node.test for node in body if isinstance(node, ast.If)]
    return any(
        isinstance(name, ast.Name) and name.id == "__name__" for one in tests for name in ast.walk(one)
    )


def _advice(name: str, where: str) -> str:
    return (
        f"{name} is defined in {where}, so the processes that render clips don't have it; put it into a "
        f"module, such as my_module.py, and pass my_module:{name}"
    )
