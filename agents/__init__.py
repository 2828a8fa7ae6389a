"""RL agents built on NumPy, torch and Gymnasium; independent of teachers, labels and Django.

Public names are listed in ``__init__.pyi`` and can be imported from ``agents``. A submodule is imported
when one of its names is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
