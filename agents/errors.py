"""Errors, each with a message of one line: what was expected, what came, what to do."""


def one_line(value: object) -> str:
    """Return the text of a value without line breaks, such as NumPy puts into long arrays."""
    return " ".join(str(value).split())


class AgentError(ValueError):
    """Base of the errors below."""


class InvalidConfigError(AgentError):
    """A hyperparameter is out of range, or does not fit the environments."""


class UnsupportedSpaceError(AgentError):
    """The observation or action space is one the policies cannot handle."""


class UnsupportedEnvironmentError(AgentError):
    """The vector environment does not name its autoreset mode."""


class NonFiniteError(AgentError):
    """An observation or a reward is NaN or infinite: training on it would destroy the policy."""


class DivergedError(AgentError):
    """An update made parameters NaN or infinite; they are as they were before."""


class ShapeError(AgentError):
    """Rewards do not fit the rollout they are given for, or images the policy."""


class StateMismatchError(AgentError):
    """A saved state belongs to an agent of another shape; nothing of it was loaded."""


class DemonstrationMismatchError(AgentError):
    """Demonstrations are of another environment than the policy; the agent is unchanged."""


class RankLostError(AgentError):
    """Another of the processes that train together has ended; without it no collective comes to an end."""
