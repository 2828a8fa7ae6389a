"""Error models of scripted teachers, which label correctly or make the mistakes that people make.

The models are those of B-Pref (Lee, Smith, Dragan, Abbeel 2021, section 3) and of imitation's
``SyntheticGatherer``, combined from parts such as ``mistake:0.1,equal:0.5``:

===================  ====================================================================================
``oracle``           prefers the higher return; labels equal returns as equal
``noisy:T``          prefers the higher return with probability 1 / (1 + exp(-margin / T)) (Bradley-Terry)
``soft:T``           labels with that probability itself (imitation's ``sample=False``)
``mistake:P``        flips the label with probability P
``skip:X``           can't tell if both returns are below X times the average
``equal:X``          labels as equal if the returns differ by less than X times the average
``myopic:G``         weights a step by G for each later step of the segment: the end counts most
``discount:G``       weights a step by G for each earlier step: the start counts most
``module:function``  uses the function's value of a segment as its return
===================  ====================================================================================

The average is over the absolute values of the last 200 returns that the teacher has seen, including the
current pair's. If all returns are negative, ``skip`` therefore needs a negative ``X``: ``skip:-1.5`` can't
tell two segments apart that are both one and a half times as bad as the average.

The module is in a low layer so that the labeler bots, which see only returns, can use it too.
"""

import math
import random
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from teacher.errors import ConfigError

RETURNS_REMEMBERED = 200

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_RANGES: dict[str, tuple[str, float, float]] = {
    # expectation, minimum, maximum
    "noisy": ("a temperature of 0 or more", 0.0, math.inf),
    "soft": ("a temperature of 0 or more", 0.0, math.inf),
    "mistake": ("a probability from 0 to 1", 0.0, 1.0),
    "skip": ("a share of the average return", -math.inf, math.inf),
    "equal": ("a share of the average return, 0 or more", 0.0, math.inf),
    "myopic": ("a discount from 0 to 1", 0.0, 1.0),
    "discount": ("a discount from 0 to 1", 0.0, 1.0),
}
_EXCLUSIVE = (("noisy", "soft"), ("myopic", "discount"), ("myopic", "function"), ("discount", "function"))


@dataclass(frozen=True, kw_only=True)
class ErrorModel:
    """Error model of a scripted teacher: a field for each part, None if absent.

    Attributes:
        function: ``module:function`` whose value replaces the true return.

    Raises:
        ConfigError: a number is out of range, or parts exclude each other.
    """

    noisy: float | None = None
    soft: float | None = None
    mistake: float | None = None
    skip: float | None = None
    equal: float | None = None
    myopic: float | None = None
    discount: float | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        parts = {name: part for name, part in vars(self).items() if part is not None}
        _require_fitting(parts, got=str(parts))

    @classmethod
    def parse(cls, text: str, option: str = "--teacher") -> "ErrorModel":
        """Parse the value of an option or argument.

        Raises:
            ConfigError: a part is unknown, a number is out of range, or parts exclude each other; the message
                starts with the option.
        """
        parts: dict[str, float | str] = {}
        try:
            for part in filter(lambda part: part != "oracle", text.split(",")):
                name, value = _read(part, text)
                if name in parts:
                    raise ConfigError(f"expected {name} once; got {text!r}")
                parts[name] = value
            _require_fitting(parts, got=repr(text))
        except ConfigError as error:
            said = f"{option}: {error}"
            raise ConfigError(said, refused={option: said}) from error
        return cls(**parts)  # type: ignore[arg-type]  # _read pairs names with their types

    @property
    def needs_segment(self) -> bool:
        """True if it judges segments by something other than the sum of true rewards."""
        return any(part is not None for part in (self.function, self.myopic, self.discount))

    @property
    def errs(self) -> bool:
        """True if its labels can differ from the order of the returns."""
        return any(part is not None for part in (self.noisy, self.soft, self.mistake, self.skip, self.equal))

    @property
    def has_thresholds(self) -> bool:
        """True if its labels depend on the average return, and so on the returns seen before."""
        return self.skip is not None or self.equal is not None


def _read(part: str, text: str) -> tuple[str, float | str]:
    name, _, number = part.partition(":")
    if name not in _RANGES:
        if _FUNCTION.fullmatch(part):
            return "function", part
        raise ConfigError(
            f"expected oracle, {', '.join(f'{known}:NUMBER' for known in _RANGES)} or "
            f"module:function, joined by commas; got {text!r}"
        )
    try:
        return name, float(number)
    except ValueError:
        return name, math.nan


def _require_fitting(parts: Mapping[str, float | str], got: str) -> None:
    """Raise :class:`ConfigError` if these parts cannot be combined; ``got`` is quoted in the message."""
    for name, value in parts.items():
        expected, least, most = _RANGES.get(name, ("", -math.inf, math.inf))
        if not isinstance(value, str) and not (math.isfinite(value) and least <= value <= most):
            raise ConfigError(f"expected {name}:NUMBER with {expected}; got {got}")
    for one, other in _EXCLUSIVE:
        if one in parts and other in parts:
            raise ConfigError(f"expected {one} or {other}, not both; got {got}")


class Answerer:
    """Labels pairs of returns by an error model.

    The same seed and key give the same label; with thresholds, only if the earlier pairs are the same too.

    Args:
        error_model: the error model.
        seed: seed of the random errors.
        seen: returns seen before, oldest first.
    """

    def __init__(self, error_model: ErrorModel, seed: int, seen: Iterable[float] = ()) -> None:
        self._error_model = error_model
        self._seed = seed
        self._sizes = deque(map(abs, seen), maxlen=RETURNS_REMEMBERED)

    def answer(self, first: float, second: float, key: str) -> float | None:
        """Return the probability that the first is better: 1, 0, 0.5 for equal, None for can't tell.

        Args:
            first: finite return of the first segment.
            second: finite return of the second segment.
            key: unique key of the comparison.
        """
        error_model = self._error_model
        self._sizes.extend((abs(first), abs(second)))
        average = sum(self._sizes) / len(self._sizes)
        if error_model.skip is not None and max(first, second) < error_model.skip * average:
            return None
        if error_model.equal is not None and abs(first - second) < error_model.equal * average:
            return 0.5
        # Not seeded by the built-in hash, which differs between processes.
        chance = random.Random(f"{self._seed}/{key}")
        strays = chance.random() >= preference(abs(first - second), error_model.noisy or 0.0)
        slips = chance.random() < (error_model.mistake or 0.0)
        value = preference(first - second, error_model.soft or 0.0)
        return 1.0 - value if strays != slips else value


def preference(margin: float, temperature: float) -> float:
    """Return the Bradley-Terry probability of preferring a return higher by ``margin``."""
    if temperature == 0 or margin == 0:
        return 0.5 if margin == 0 else float(margin > 0)
    return 0.5 + 0.5 * math.tanh(0.5 * margin / temperature)  # as 1 / (1 + exp(-x)), without its overflow
