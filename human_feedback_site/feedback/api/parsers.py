"""Reading JSON that may have been written to do harm."""

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class StrictJSONParser(JSONParser):
    """JSON that can be kept: Unicode, nested no deeper than it can be read."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the data; raises DRF's ``ParseError``."""
        try:
            data = super().parse(stream, media_type, parser_context)
            json.dumps(data, ensure_ascii=False).encode()
        except RecursionError:
            raise ParseError("The JSON is nested too deeply.") from None
        except UnicodeEncodeError:  # "\\ud800" is JSON, but half a character
            raise ParseError("The JSON has a surrogate without its other half.") from None
        return data
