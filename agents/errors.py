"""Exceptions of this package; each has a one-line message that says what is wrong and what to do."""


def one_line(value: object) -> str:
    """Return ``str(value)`` on one line, with each run of whitespace replaced by a single space."""
    return " ".join(str(value).split())


class AgentError(ValueError):
    """Base class of this package's exceptions."""


class InvalidConfigError(AgentError):
    """A hyperparameter or setting is invalid, or doesn't fit the environments."""


class UnsupportedSpaceError(AgentError):
    """No policy in this package supports the observation or action space."""


class UnsupportedEnvironmentError(AgentError):
    """The vector environment doesn't declare its autoreset mode in ``metadata``."""


class NonFiniteError(AgentError):
    """An observation, reward or loss is NaN or infinite, so training on it would ruin the policy."""


class DivergedError(AgentError):
    """An update made parameters NaN or infinite; the previous parameters were restored."""


class ShapeError(AgentError):
    """Rewards don't have the rollout's shape, or images don't fit the observation space's shape or dtype."""


class StateMismatchError(AgentError):
    """A saved state doesn't fit this agent's networks or algorithm; nothing was loaded."""


class DemonstrationMismatchError(AgentError):
    """Demonstrations don't fit the policy's observation or action space; the agent is unchanged."""


class RankLostError(AgentError):
    """Another training process (rank) has ended, so collective operations can't finish."""
