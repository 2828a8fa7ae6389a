"""Lookup of environment specs by ID; this module imports neither torch nor MuJoCo."""

import difflib
import importlib
import importlib.util

import gymnasium as gym

from teacher.envs.families import old_names
from teacher.envs.suites import SUITES, close_tasks
from teacher.errors import EnvironmentUnsuitableError, describe_exception, one_line
from teacher.extras import ENVIRONMENTS, extra_of
from teacher.settings.functions import add_cwd_to_path


def find_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """Return the registered spec of an environment.

    Args:
        env_id: Gymnasium ID, or ``module:Env-v0`` to import ``module`` first.

    Raises:
        EnvironmentUnsuitableError: the module can't be imported, or the ID is not registered; the message
            suggests similar IDs.
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
    """Return what to do about an ID that is not registered."""
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
