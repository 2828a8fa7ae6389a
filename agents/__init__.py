"""RL agents on NumPy, torch and gymnasium; they know nothing of teachers, labels or Django.

Programs import the names of ``__init__.pyi`` from here; each is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
