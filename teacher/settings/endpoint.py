"""Settings of a model that labels: its endpoint, what it sees, its price and its limits."""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from teacher.errors import ConfigError
from teacher.settings.addresses import is_http_url
from teacher.settings.checks import COUNT, NOT_NEGATIVE, POSITIVE, Fits, at_most, check_fields

KEY_VARIABLES = ("TEACHER_MODEL_KEY", "OPENAI_API_KEY")


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """Model that labels, its price, and the limits on its use."""

    url: Annotated[
        str,
        "URL of an OpenAI-compatible endpoint, such as http://localhost:8000/v1; its key is read from "
        f"{KEY_VARIABLES[0]} or {KEY_VARIABLES[1]}",
        Fits("http(s)://host[/path]", is_http_url),
    ]
    model: Annotated[str, "name of the model at the endpoint"]
    frames: Annotated[int, "frames of each clip that the model sees", COUNT] = 9
    width: Annotated[int, "width of each frame in pixels", COUNT, at_most("2000")] = 192
    per_minute: Annotated[float | None, "maximum number of requests per minute", POSITIVE] = None
    max_tokens: Annotated[int | None, "stop before the model has used this many tokens", COUNT] = None
    budget: Annotated[float | None, "stop before the model has cost more than this", POSITIVE] = None
    price_in: Annotated[float | None, "price of a million tokens sent", NOT_NEGATIVE] = None
    price_out: Annotated[float | None, "price of a million tokens received", NOT_NEGATIVE] = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.budget is not None and None in (self.price_in, self.price_out):
            raise ConfigError("--budget needs the model's prices; also pass --price_in and --price_out")

    def cost(self, sent: int, received: int) -> float:
        """Return the price of a request; 0 if the prices are not known."""
        return ((self.price_in or 0.0) * sent + (self.price_out or 0.0) * received) / 1e6

    @property
    def host(self) -> str:
        """The endpoint's address for messages, without a password that the URL may contain."""
        return urlsplit(self.url).netloc.rpartition("@")[2]
