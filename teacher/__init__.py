"""RL-Teacher's public API: queries, labels, reward predictors, and the training loop around them.

``__init__.pyi`` lists the public names. Each name is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
