"""The JSON decoder for both forms of a corpus: Python's own, with limits and error messages."""

import json

LARGEST = 1 << 28
"""The most characters that a document's JSON may have, 268 million: tokenising takes about seven times that memory."""

_DIGITS = 4300  # Python's own limit: int() of a text takes time quadratic in its length


def too_large() -> str:
    """Why an element beyond `LARGEST` is refused."""
    return f"has more than {LARGEST:,} characters; split that document"


def unusable(error: ValueError | RecursionError) -> str:
    """Why the decoder refused an element although its syntax is right."""
    if isinstance(error, RecursionError):
        return "is nested too deeply (maximum recursion depth exceeded)"
    return str(error)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"is not one whole JSON object: {name} is not JSON")


def _whole_number(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"holds a whole number of {len(digits):,} digits; {_DIGITS:,} are the most")
    return int(digits)


DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_whole_number)
