"""Error models of scripted teachers, which label by return, with or without human-like mistakes.

The models come from B-Pref (Lee, Smith, Dragan, Abbeel 2021, section 3) and from imitation's
``SyntheticGatherer``. Several can be combined with commas, as in ``mistake:0.1,equal:0.5``:

===================  ====================================================================================
``oracle``           prefers the higher return; labels equal returns as equal
``noisy:T``          prefers the higher return with probability 1 / (1 + exp(-margin / T)) (Bradley-Terry)
``soft:T``           uses this probability as the label (imitation's ``sample=False``)
``mistake:P``        flips the label with probability P
``skip:X``           answers "can't tell" if both returns are below X times the average
``equal:X``          labels as equal if the returns differ by less than X times the average
``myopic:G``         multiplies a reward by G for each later step: the segment's end has most weight
``discount:G``       multiplies a reward by G for each earlier step: the segment's start has most weight
``module:function``  uses the value that the function returns for a segment as its return
``collected:N``      bases the average for ``skip`` and ``equal`` on the N newest training segments
===================  ====================================================================================

The average is the mean absolute value of the last 200 returns that the teacher has judged, including the
current pair. With ``collected``, it is that of the newest training segments; B-Pref uses those of the last
ten episodes. If all returns are negative, ``skip`` needs a negative ``X``: ``skip:-1.5`` answers
"can't tell" if both returns are below -1.5 times the average.

Most parts need only returns, so labeler bots, which see nothing else, can also use them.

These are the models for pairs. For other kinds of questions, ``noisy:T`` adds Gumbel noise of scale ``T`` to
each return, which gives the same probabilities for pairs; ``mistake:P`` reverses the answer (1 becomes 5,
best becomes worst); ``equal`` applies to pairs only, graded ones included, and ``soft`` to plain pairs.
"""

import math
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from teacher.errors import ConfigError

RETURNS_REMEMBERED = 200

_RANGES: dict[str, tuple[str, float, float]] = {
    # expectation, minimum, maximum
    "noisy": ("a temperature of 0 or more", 0.0, math.inf),
    "soft": ("a temperature of 0 or more", 0.0, math.inf),
    "mistake": ("a probability from 0 to 1", 0.0, 1.0),
    "skip": ("a share of the average return", -math.inf, math.inf),
    "equal": ("a share of the average return, 0 or more", 0.0, math.inf),
    "myopic": ("a discount from 0 to 1", 0.0, 1.0),
    "discount": ("a discount from 0 to 1", 0.0, 1.0),
    "collected": ("a number of segments, 1 or more", 1.0, math.inf),
}
_EXCLUSIVE = (("noisy", "soft"), ("myopic", "discount"), ("myopic", "function"), ("discount", "function"))


@dataclass(frozen=True, kw_only=True)
class ErrorModel:
    """Error model of a scripted teacher.

    Each field except ``function`` sets the parameter of one kind of error; None disables it.

    Attributes:
        function: name (``module:function``) of a function whose result replaces a segment's true return.

    Raises:
        ConfigError: a value is out of range, or two kinds of error can't be combined.
    """

    noisy: float | None = None
    soft: float | None = None
    mistake: float | None = None
    skip: float | None = None
    equal: float | None = None
    myopic: float | None = None
    discount: float | None = None
    collected: float | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        parts = {name: part for name, part in vars(self).items() if part is not None}
        _require_fitting(parts, got=str(parts))

    @classmethod
    def parse(cls, text: str, option: str = "--teacher") -> "ErrorModel":
        """Parse a string such as ``mistake:0.1,equal:0.5``.

        Raises:
            ConfigError: the string is invalid; the message starts with the name of the option.
        """
        parts: dict[str, float | str] = {}
        try:
            for part in filter(lambda part: part != "oracle", text.split(",")):
                name, value = _read(part, text)
                if name in parts:
                    raise ConfigError(f"{name} may appear only once; got {text!r}")
                parts[name] = value
            _require_fitting(parts, got=repr(text))
        except ConfigError as error:
            said = f"{option}: {error}"
            raise ConfigError(said, refused={option: said}) from error
        return cls(**parts)  # type: ignore[arg-type]  # _read pairs names with their types

    @property
    def needs_segment(self) -> bool:
        """True if labels depend on more than the true returns of the segments judged."""
        parts = self.function, self.myopic, self.discount, self.collected
        return any(part is not None for part in parts)

    @property
    def errs(self) -> bool:
        """True if a label can contradict the order of the returns."""
        return any(part is not None for part in (self.noisy, self.soft, self.mistake, self.skip, self.equal))

    @property
    def has_thresholds(self) -> bool:
        """True if labels depend on the average return, and therefore on earlier comparisons."""
        return self.skip is not None or self.equal is not None


def _read(part: str, text: str) -> tuple[str, float | str]:
    name, _, number = part.partition(":")
    if name not in _RANGES:
        if number.isidentifier() and all(each.isidentifier() for each in name.split(".")):
            return "function", part
        raise ConfigError(
            "expected one or more of oracle, "
            f"{', '.join(f'{known}:NUMBER' for known in _RANGES)} and module:function, separated by "
            f"commas; got {text!r}"
        )
    try:
        return name, float(number)
    except ValueError:
        return name, math.nan


def _require_fitting(parts: Mapping[str, float | str], got: str) -> None:
    """Raise :class:`ConfigError` for an invalid value or combination of values.

    The error message quotes ``got``, the user's input.
    """
    for name, value in parts.items():
        expected, least, most = _RANGES.get(name, ("", -math.inf, math.inf))
        if not isinstance(value, str) and not (math.isfinite(value) and least <= value <= most):
            raise ConfigError(f"expected {name}:NUMBER with {expected}; got {got}")
    for one, other in _EXCLUSIVE:
        if one in parts and other in parts:
            raise ConfigError(f"expected {one} or {other}, not both; got {got}")
    if float(parts.get("collected", 1)) % 1:
        raise ConfigError(f"expected collected:NUMBER with an integer; got {got}")
    if "collected" in parts and not {"skip", "equal"} & parts.keys():
        raise ConfigError(f"expected collected:NUMBER together with skip or equal; got {got}")


@dataclass(frozen=True)
class Perceived:
    """View of a question's segments by a scripted teacher.

    Attributes:
        returns: return of each segment, with the error model's noise.
        slips: True if the teacher reverses its answer by mistake.
        looks_equal: True if the first two returns differ by less than the threshold of ``equal``.
        remembered: the last 200 returns judged, oldest first, including this question's.
    """

    returns: Sequence[float]
    slips: bool
    looks_equal: bool
    remembered: Sequence[float]


class Answerer:
    """Labels pairs of returns according to an error model.

    A label depends only on the seed, the comparison's key, both returns and, for ``skip`` and ``equal``, the
    returns of earlier comparisons.

    Args:
        seen: returns of earlier comparisons, oldest first.
    """

    def __init__(self, error_model: ErrorModel, seed: int, seen: Iterable[float] = ()) -> None:
        self._error_model = error_model
        self._seed = seed
        self._returns = deque(seen, maxlen=RETURNS_REMEMBERED)

    def answer(self, first: float, second: float, key: str, average: float | None = None) -> float | None:
        """Return the probability that the first segment is better, or None for "can't tell".

        Args:
            first: return of the first segment; must be finite.
            second: return of the second segment; must be finite.
            key: the comparison's unique ID; seeds the teacher's random errors.
            average: average return for the thresholds of ``skip`` and ``equal``; None for that of the returns
                judged so far.
        """
        error_model = self._error_model
        skips, looks_equal = self._look((first, second), average)
        if skips:
            return None
        if looks_equal:
            return 0.5
        # Not seeded by the built-in hash, which differs between processes.
        chance = random.Random(f"{self._seed}/{key}")
        strays = chance.random() >= preference(abs(first - second), error_model.noisy or 0.0)
        slips = chance.random() < (error_model.mistake or 0.0)
        value = preference(first - second, error_model.soft or 0.0)
        return 1.0 - value if strays != slips else value

    def perceive(self, returns: Sequence[float], key: str, average: float | None = None) -> Perceived | None:
        """Return the teacher's view of a question of any kind, or None for "can't tell".

        Args:
            returns: return of each segment; must be finite.
            key: the question's unique ID; seeds the teacher's random errors.
            average: same as in :meth:`answer`.
        """
        error_model = self._error_model
        skips, looks_equal = self._look(returns, average)
        if skips:
            return None
        chance = random.Random(f"{self._seed}/{key}")
        noise = [-math.log(-math.log(_inside(chance.random()))) for _ in returns]  # Gumbel
        seen = [each + (error_model.noisy or 0.0) * more for each, more in zip(returns, noise, strict=True)]
        slips = chance.random() < (error_model.mistake or 0.0)
        return Perceived(seen, slips, looks_equal, list(self._returns))

    def _look(self, returns: Sequence[float], average: float | None) -> tuple[bool, bool]:
        """Remember the returns; return whether to skip the question, and whether the first two look equal."""
        self._returns.extend(returns)
        if average is None:
            average = sum(map(abs, self._returns)) / len(self._returns)
        skip, equal = self._error_model.skip, self._error_model.equal
        skips = skip is not None and max(returns) < skip * average
        near = equal is not None and len(returns) > 1 and abs(returns[0] - returns[1]) < equal * average
        return skips, near


def _inside(number: float) -> float:
    """Return a number of [0, 1) that is not 0."""
    return number or math.ulp(0.0)


def preference(margin: float, temperature: float) -> float:
    """Return the Bradley-Terry probability of preferring the segment whose return is higher by ``margin``."""
    if temperature == 0 or margin == 0:
        return 0.5 if margin == 0 else float(margin > 0)
    return 0.5 + 0.5 * math.tanh(0.5 * margin / temperature)  # as 1 / (1 + exp(-x)), without its overflow
