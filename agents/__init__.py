"""RL agents in NumPy, torch and Gymnasium, independent of teachers, labels and Django.

Import names listed in ``__init__.pyi`` from here; each is loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
