"""RL-Teacher's public API: queries, labels, reward predictors, and the training loop around them.

``__init__.pyi`` lists the public names. Each name is imported when it is first used.
"""

import os

import lazy_loader

_eager = os.environ.pop("EAGER_IMPORT", None)  # lazy_loader would import torch, even in a render worker
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
if _eager is not None:
    os.environ["EAGER_IMPORT"] = _eager
