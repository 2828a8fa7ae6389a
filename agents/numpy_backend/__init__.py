"""Hand-derived NumPy updates for small tanh networks on the CPU, where torch calls take most of the time.

Each class repeats the arithmetic of its torch counterpart behind the same interface and is tested against it:
:class:`NumpyPPOStep` that of :class:`agents.ppo.TorchPPOStep`, :class:`NumpySurrogate` that of
:class:`agents.trpo.TorchSurrogate`, and :class:`NumpyCritic` that of :class:`agents.on_policy.TorchCritic`.
To understand an algorithm, read those; nothing here is needed for it. Each module is loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
