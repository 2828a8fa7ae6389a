"""RL agents built on NumPy, torch and Gymnasium; independent of teachers, labels and Django.

Public names are listed in ``__init__.pyi`` and can be imported from ``agents``. A submodule is imported
when one of its names is first used.
"""

import os

import lazy_loader

_eager = os.environ.pop("EAGER_IMPORT", None)  # lazy_loader would import torch, even in a render worker
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
if _eager is not None:
    os.environ["EAGER_IMPORT"] = _eager
