"""The variants of an ablation: what each gives to ``--operators``, or why it cannot be had here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.operators import OPERATORS, Facts, choose
from fsdp_lab.settings.operators.choose import why_not

NAIVE, BEST = "naive", "best"
_OTHER = {"fp32": "bf16", "bf16": "fp32"}


@dataclass(frozen=True)
class Arm:
    """One variant. ``operators``: as ``--operators`` takes them. ``dtype``: of forward and backward."""

    name: str
    operators: Mapping[str, str] = field(hash=False)
    dtype: str


@dataclass(frozen=True)
class NotHere:
    """An implementation that is not measured here, and why."""

    operator: str
    implementation: str
    reason: str


def ablation(facts: Facts, every: bool = False) -> list[Arm]:
    """naive, best, best without each, naive with each; the other precision.

    An operator whose best is its naive one has a row for each implementation that there is beside it, in place of
    these. ``every``: a row for every implementation of the others, too. ``facts.dtype`` is that of all arms but one.
    """
    dtype = str(facts.dtype)
    naive, best = (choose(ModelConfig(operators={"others": word}), facts) for word in (NAIVE, BEST))
    arms = [Arm(NAIVE, {"others": NAIVE}, dtype), Arm(BEST, {"others": BEST}, dtype)]
    for name, chosen in best.items():
        if chosen != naive[name]:
            arms.append(Arm(f"best, {name} {naive[name]}", {"others": BEST, name: naive[name]}, dtype))
            arms.append(Arm(f"naive, {name} {chosen}", {"others": NAIVE, name: chosen}, dtype))
        further = _further(name, {chosen, naive[name]}, facts) if every or chosen == naive[name] else []
        arms += [Arm(f"best, {name} {other}", {"others": BEST, name: other}, dtype) for other in further]
    arms.append(Arm(f"best, precision {_OTHER[dtype]}", {"others": BEST}, _OTHER[dtype]))
    return arms


def not_here(facts: Facts) -> Iterator[NotHere]:
    """The implementations that this device, or this installation, cannot have."""
    for name, operator in OPERATORS.items():
        if facts.family in operator.families:
            for implementation in operator.choices_of(facts.family):
                if reason := why_not(name, implementation, facts):
                    yield NotHere(name, implementation, reason)


def _further(name: str, known: set[str], facts: Facts) -> list[str]:
    return [n for n in OPERATORS[name].choices_of(facts.family) if n not in known and not why_not(name, n, facts)]
