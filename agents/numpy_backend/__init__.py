"""PPO and TRPO updates in NumPy with hand-derived gradients, for small tanh networks on the CPU.

For such small networks, torch spends more time on call overhead than on arithmetic. Each class has the
interface of its torch counterpart and is tested to give the same results:

- :class:`NumpyPPOStep`: :class:`agents.ppo.TorchPPOStep`
- :class:`NumpySurrogate`: :class:`agents.trpo.TorchSurrogate`
- :class:`NumpyCritic`: :class:`agents.on_policy.TorchCritic`

To understand the algorithms, read the torch classes. Each module here is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
