"""The laws that every method obeys, run over yours; by the tests over all of ours. They are in `comm_compress.laws`.

    python -m comm_compress.conformance "my_method bits=4"        # or my_method '{"bits": 4}'

Virtual ranks only (`comm_compress.drive.simulate`): no network, seconds. Each law raises AssertionError with what was
expected and what was seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comm_compress.core.compressor import Compressor
    from comm_compress.laws import *  # noqa: F403  # whatever is asked of this module


def __getattr__(name: str) -> Any:
    """The laws, and what they are made of (`comm_compress.laws`), are imported when one of them is asked for: the flags
    of this program need no torch."""
    from comm_compress import laws

    try:
        return getattr(laws, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def main(prog: str = "python -m comm_compress.conformance") -> int:
    """Check one method; 1 when a law is broken, 2 when the method cannot be built. ``prog``: how this was called."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(__doc__ or "").replace("python -m comm_compress.conformance", prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", help="its name, or a label with its settings")
    parser.add_argument("config", nargs="?", default="{}", help="its settings as a JSON object")
    options = parser.parse_args()
    from comm_compress.laws import laws_for  # this and methods need torch, --help and wrong words do not
    from comm_compress.registry import make

    def factory() -> Compressor:
        made = make(options.method, _settings(options.config))
        if made is None:
            raise ValueError("none is no method: it registers no hook")
        return made

    try:
        laws = laws_for(factory())
    except ValueError as e:
        print(f"conformance: {e}", file=sys.stderr)
        return 2
    broken = 0
    for law in laws:
        try:
            law(factory)
            print(f"holds   {law.__name__}")
        except AssertionError as e:
            broken += 1
            print(f"BROKEN  {law.__name__}: {e}")
    return 1 if broken else 0


def _settings(text: str) -> dict[str, object]:
    try:
        loaded = json.loads(text)
    except ValueError as e:
        raise ValueError(
            f'config: got {text!r}, wants a JSON object of settings, such as {{"bits": 4}} ({e})'
        ) from None
    if not isinstance(loaded, dict):
        raise ValueError(f'config: got {text!r}, wants a JSON object of settings, such as {{"bits": 4}}')
    return loaded


if __name__ == "__main__":
    sys.exit(main())
