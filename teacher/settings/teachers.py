"""How scripted teachers answer: always right, or wrong in the ways in which people are.

The ways are those of B-Pref (Lee, Smith, Dragan, Abbeel 2021, section 3) and of imitation's
``SyntheticGatherer``, put together from parts such as ``mistake:0.1,equal:0.5``:

===================  ====================================================================================
``oracle``           prefers the larger return; equal returns are equal
``noisy:T``          prefers the larger with the probability 1 / (1 + exp(-margin / T)) (Bradley-Terry)
``soft:T``           answers with that probability itself (imitation's ``sample=False``)
``mistake:P``        gives the other answer with probability P
``skip:X``           cannot tell where both returns are below X times the average
``equal:X``          takes for equal what differs by less than X times the average
``myopic:G``         weighs a step G for each step that follows it in the segment: the end counts most
``discount:G``       weighs a step G for each step before it: the beginning counts most
``module:function``  takes the function's value of a segment for its return
===================  ====================================================================================

The average is that of the sizes (absolute values) of the last 200 returns that the teacher has looked at,
the present pair's included. Where all returns are negative, ``skip`` therefore needs a negative ``X``:
``skip:-1.5`` cannot tell two segments apart that are both one and a half times as bad as the average.

This module stands so low that the labeler bots, which see returns and nothing else, share it.
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
    # what to say, least, most
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
    """How a teacher answers: one field for each part of the module's table, None where it is absent.

    Attributes:
        function: ``module:function``.

    Raises:
        ConfigError: a number does not fit, or parts exclude each other.
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
        """Read what an option, or an argument of that name, was given.

        Raises:
            ConfigError: an unknown part, a number that does not fit, or parts that exclude each other; it
                begins with the option.
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
        """Whether the return it judges by is another than the sum of the true rewards."""
        return any(part is not None for part in (self.function, self.myopic, self.discount))

    @property
    def errs(self) -> bool:
        """Whether it answers otherwise than the returns say."""
        return any(part is not None for part in (self.noisy, self.soft, self.mistake, self.skip, self.equal))

    @property
    def has_thresholds(self) -> bool:
        """Whether its answers depend on the average return, and so on what it has looked at before."""
        return self.skip is not None or self.equal is not None


def _read(part: str, text: str) -> tuple[str, float | str]:
    name, _, number = part.partition(":")
    if name not in _RANGES:
        if _FUNCTION.fullmatch(part):
            return "function", part
        raise ConfigError(
            f"expected oracle, {', '.join(f'{known}:NUMBER' for known in _RANGES)} or "
            f"module:function, several of them with commas; got {text!r}"
        )
    try:
        return name, float(number)
    except ValueError:
        return name, math.nan


def _require_fitting(parts: Mapping[str, float | str], got: str) -> None:
    """Raise :class:`ConfigError`, which says what it ``got``, unless these parts can be put together."""
    for name, value in parts.items():
        expected, least, most = _RANGES.get(name, ("", -math.inf, math.inf))
        if not isinstance(value, str) and not (math.isfinite(value) and least <= value <= most):
            raise ConfigError(f"expected {name}:NUMBER with {expected}; got {got}")
    for one, other in _EXCLUSIVE:
        if one in parts and other in parts:
            raise ConfigError(f"expected {one} or {other}, not both; got {got}")


class Answerer:
    """Answers pairs of returns as a scripted teacher does.

    The same seed and key give the same answer; with thresholds, if the same pairs came before.

    Args:
        error_model: how it errs.
        seed: of the teacher's errors.
        seen: returns it has looked at before, oldest first.
    """

    def __init__(self, error_model: ErrorModel, seed: int, seen: Iterable[float] = ()) -> None:
        self._error_model = error_model
        self._seed = seed
        self._sizes = deque(map(abs, seen), maxlen=RETURNS_REMEMBERED)

    def answer(self, first: float, second: float, key: str) -> float | None:
        """The probability that the first is better: 1, 0, 0.5 for equal, None where the teacher cannot tell.

        Args:
            first: return of one segment, finite.
            second: of the other.
            key: tells this comparison from every other.
        """
        error_model = self._error_model
        self._sizes.extend((abs(first), abs(second)))
        average = sum(self._sizes) / len(self._sizes)
        if error_model.skip is not None and max(first, second) < error_model.skip * average:
            return None
        if error_model.equal is not None and abs(first - second) < error_model.equal * average:
            return 0.5
        # Not the built-in hash, which differs from process to process.
        chance = random.Random(f"{self._seed}/{key}")
        strays = chance.random() >= preference(abs(first - second), error_model.noisy or 0.0)
        slips = chance.random() < (error_model.mistake or 0.0)
        value = preference(first - second, error_model.soft or 0.0)
        return 1.0 - value if strays != slips else value


def preference(margin: float, temperature: float) -> float:
    """Bradley-Terry's probability of preferring what is better by ``margin``; at temperature 0 it is sure."""
    if temperature == 0 or margin == 0:
        return 0.5 if margin == 0 else float(margin > 0)
    return 0.5 + 0.5 * math.tanh(0.5 * margin / temperature)  # as 1 / (1 + exp(-x)), without its overflow
