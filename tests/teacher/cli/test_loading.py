"""Garbage collection while a program starts."""

import gc
import importlib
import sys

import pytest

from teacher.loading import loading


def load(*modules: str) -> None:
    with loading():
        assert not gc.isenabled()
        for module in modules:
            importlib.import_module(module)


def test_garbage_is_collected_again_however_the_imports_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    frozen = gc.get_freeze_count()
    load("string")  # which is there already
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen
    with pytest.raises(ModuleNotFoundError):
        load("colorsys", "teacher.nothing")
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
