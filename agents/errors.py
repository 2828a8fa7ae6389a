"""Errors, each with a one-line message: what was expected, what was found, what to do."""


def one_line(value: object) -> str:
    """Return the text of a value without line breaks, such as those of long NumPy arrays."""
    return " ".join(str(value).split())


class AgentError(ValueError):
    """Base class of this package's errors."""


class InvalidConfigError(AgentError):
    """A hyperparameter is out of range, or does not fit the environments."""


class UnsupportedSpaceError(AgentError):
    """The observation or action space is not supported by the policies."""


class UnsupportedEnvironmentError(AgentError):
    """The vector environment does not declare its autoreset mode."""


class NonFiniteError(AgentError):
    """An observation or a reward is NaN or infinite: training on it would destroy the policy."""


class DivergedError(AgentError):
    """An update made parameters NaN or infinite; the previous ones were restored."""


class ShapeError(AgentError):
    """Rewards do not fit their rollout, or images do not fit the policy."""


class StateMismatchError(AgentError):
    """A saved state is from an agent of another shape; nothing was loaded."""


class DemonstrationMismatchError(AgentError):
    """Demonstrations are from another environment than the policy; the agent is unchanged."""


class RankLostError(AgentError):
    """Another training process has ended; without it, no collective can finish."""
