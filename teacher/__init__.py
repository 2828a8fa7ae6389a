"""RL-Teacher: query selection, labels, reward predictor, and the training loop around them.

The public names are in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
