"""Options of ``teach compare``."""

from dataclasses import dataclass
from typing import Annotated

from teacher.errors import ConfigError
from teacher.settings.addresses import SiteSettings
from teacher.settings.checks import COUNT, MILLION, NOT_NEGATIVE, POSITIVE, SEED, Fits, check_fields, refuse
from teacher.settings.options import KindName

_NAME = Fits(
    "1 to 100 letters, digits, _ or -",
    lambda text: text.replace("-", "_").replace("_", "a").isalnum() and text.isascii() and len(text) <= 100,
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(SiteSettings):
    """Options of ``teach compare``."""

    name: Annotated[str, "name of the study; its folder is comparisons/NAME", _NAME, "-n"]
    prompt: Annotated[str, "the question that labelers see"] = "Which one does better?"
    feedback: Annotated[KindName, "what labelers choose; each answer must compare films with each other"] = (
        "pair"
    )
    reasons: Annotated[bool, "let labelers write why"] = False
    env_id: Annotated[str | None, "environment to film in (default: that of the runs)", "-e"] = None
    starts: Annotated[int | None, "start states from which each policy is filmed (default: 10)", COUNT] = None
    seconds: Annotated[float, "length of the films, from the start state on", POSITIVE] = 5.0
    seed: Annotated[int, "seed of the start states", SEED] = 0
    n_labels: Annotated[int, "end after this many answers", COUNT, MILLION, "-l"] = 300
    width: Annotated[
        int,
        "end when each policy's place is known up to this many places; 0: the order is known",
        NOT_NEGATIVE,
    ] = 0
    against: Annotated[
        str | None, "name of a policy than which the others must not be worse; if one is, exit with status 3"
    ] = None
    margin: Annotated[
        float,
        "with --against: how much less often than half of the time the others may be chosen",
        Fits("0 or more and less than 0.5", lambda value: 0 <= value < 0.5),
    ] = 0.1

    def __post_init__(self) -> None:
        check_fields(self, prefix="--")
        refuse(self, self.site_problems())

    def index_against(self, names: list[str]) -> int | None:
        """Return the index of the policy that the others must not be worse than; None if there is none."""
        if self.against is None:
            return None
        if self.against not in names:
            raise ConfigError(f"--against: expected one of {', '.join(names)}, got {self.against!r}")
        return names.index(self.against)
