"""What was found out about a comparison, or about an arm's runs, kept with it: a question is answered once.

A report asks the same of one comparison from many places: every figure's foot line asks which arm sends 16 bits, and
every arm's verdict asks it again. Answers last as long as what they are about, which never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")
_KEPT = "_remembered"  # beside the fields of the dataclass, which neither its equality nor `replace` sees


def remembered(function: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The function, computed once for each of its first arguments (and each choice of the others, which are hashed).

    The first argument is a dataclass without slots; it may be frozen, and need not be hashable. Callers share the
    result, and must not change it."""

    @wraps(function)
    def ask(subject: S, /, *args: P.args, **options: P.kwargs) -> T:
        known: dict[Any, T] = vars(subject).setdefault(_KEPT, {})
        key = function, args, tuple(sorted(options.items()))
        if key not in known:
            known[key] = function(subject, *args, **options)
        return known[key]

    return ask
