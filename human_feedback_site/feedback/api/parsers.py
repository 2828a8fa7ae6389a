"""JSON parser that rejects malicious input."""

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class StrictJSONParser(JSONParser):
    """JSON parser that rejects unpaired surrogates and documents nested beyond Python's recursion limit."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Parse the request body and return the data. Raises DRF's ``ParseError`` if the body is invalid."""
        try:
            data = super().parse(stream, media_type, parser_context)
            json.dumps(data, ensure_ascii=False).encode()
        except RecursionError:
            raise ParseError("The JSON is nested too deeply.") from None
        except UnicodeEncodeError:  # "\\ud800" is valid JSON, but not valid Unicode
            raise ParseError("The JSON contains an unpaired surrogate.") from None
        return data
