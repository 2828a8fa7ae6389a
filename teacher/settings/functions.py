"""Import of custom functions by name."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from teacher.errors import ConfigError, describe_exception, one_line

OLD_MODULES: Mapping[str, str] = {"teacher.behaviours": "teacher.behaviors"}
"""Old names of modules that saved settings may contain, mapped to current names."""


def add_cwd_to_path() -> None:
    """Append the current working directory to ``sys.path`` so that its modules can be imported."""
    if os.getcwd() not in sys.path and "" not in sys.path:  # noqa: PTH109 (sys.path holds strings)
        sys.path.append(os.getcwd())  # noqa: PTH109


def named_function(name: str, option: str = "") -> Callable[..., Any]:
    """Import the function named ``module:function`` from ``sys.path`` or the working directory."""
    module, _, function = name.partition(":")
    begin = f"{option}: " if option else ""
    if not module or not function:  # before importing a module needlessly
        raise ConfigError(f"{begin}expected module:function, got {one_line(name)}")
    add_cwd_to_path()
    try:
        found: Callable[..., Any] = getattr(
            importlib.import_module(OLD_MODULES.get(module, module)), function
        )
    except (Exception, SystemExit) as error:  # a module may raise anything
        raise ConfigError(f"{begin}cannot import {name}: {describe_exception(error)}") from error
    if not callable(found):
        raise ConfigError(f"{begin}expected a function, but {name} is {one_line(found)}")
    return found
