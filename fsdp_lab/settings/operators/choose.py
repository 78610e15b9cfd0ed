"""From what the user said of operators to one implementation of each, or to the reason why that cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fsdp_lab.extras import missing
from fsdp_lab.settings.operators.table import CONFLICTS, OPERATORS, PRECISIONS, WORDS, Operator

OTHERS, PRECISION = "others", "precision"
_IS_ON = {"compile": {True: "blocks", False: "off"}, "checkpointing": {True: "blocks", False: "off"}}


class ModelSettings(Protocol):
    """What `fsdp_lab.settings.groups.ModelConfig` says of operators."""

    @property
    def operators(self) -> dict[str, Any]:
        """Implementations by operator; ``others``: a word for all that are not named."""

    @property
    def attention(self) -> str:
        """The flag of the attention."""

    @property
    def compile(self) -> bool:
        """The flag of torch.compile."""

    @property
    def activation_checkpointing(self) -> bool:
        """The flag of activation checkpointing."""


@dataclass(frozen=True)
class Facts:
    """What an implementation's availability depends on.

    ``family``: the model's, as its config.json names it. ``device``: "cpu" or "cuda"; None: not known yet, nothing is
    refused because of it. ``dtype``: of forward and backward, "fp32", "bf16" or "fp16"; None: not known yet.
    ``torch``: its version. ``lacks``: what to install for an extra, None where its packages are there.
    """

    family: str
    device: str | None
    dtype: str | None
    torch: tuple[int, int]
    lacks: Callable[[str], str | None] = missing


def named(model: ModelSettings) -> dict[str, str]:
    """The operators that the user named, each with what was asked for, by --operators or by a flag of their own.

    A flag at its default names nothing.
    """
    by_name = {name: str(asked) for name, asked in model.operators.items() if name in OPERATORS}
    for name, operator in OPERATORS.items():
        if operator.flag and (asked := _by_flag(model, name)) != operator.default[""]:
            by_name.setdefault(name, asked)
    return by_name


def _by_flag(model: ModelSettings, name: str) -> str:
    value = getattr(model, OPERATORS[name].flag)
    return _IS_ON[name][value] if name in _IS_ON else str(value)


def complaints_about(model: ModelSettings, precision: str) -> list[str]:
    """What is wrong with the settings by themselves: unknown names, and flags that say something else.

    ``precision``: what --mixed_precision says.
    """
    complaints = []
    for name, asked in model.operators.items():
        if name == OTHERS:
            known: Iterable[str] = WORDS
        elif name == PRECISION:
            known = PRECISIONS
        elif name in OPERATORS:
            known = (*OPERATORS[name].choices, *WORDS)
        else:
            every = (*OPERATORS, PRECISION, OTHERS)
            complaints.append(f"operators: no operator {name!r}{_close(name, every)}; known: {', '.join(every)}")
            continue
        if asked not in known:
            listed = ", ".join(known)
            complaints.append(f"operators: {name}: got {asked!r}{_close(str(asked), known)}, wants one of {listed}")
        elif said := _contradiction(model, name, str(asked), precision):
            complaints.append(said)
    return complaints


def _contradiction(model: ModelSettings, name: str, asked: str, precision: str) -> str:
    if name == PRECISION:
        said = {"no": "fp32"}.get(precision, precision)
        return "" if said in ("auto", asked) else f"operators: precision {asked}, but --mixed_precision {precision}"
    if name == OTHERS or not OPERATORS[name].flag or (said := _by_flag(model, name)) == OPERATORS[name].default[""]:
        return ""
    flag = OPERATORS[name].flag
    return "" if asked == said else f"operators: {name} {asked}, but --{flag} says {said}; give one of them"


def choose(model: ModelSettings, facts: Facts) -> dict[str, str]:
    """One implementation for every operator that models of the family have. ValueError for what cannot be, with why.

    What was named is taken as it is. For the others a word decides; ``best`` is the first of its preferences that is
    available and goes together with the rest.
    """
    if complaints := refusals(model, facts):
        raise ValueError("; ".join(complaints))
    return _chosen(model, facts)


def refusals(model: ModelSettings, facts: Facts) -> list[str]:
    """A complaint for each operator that was named and cannot be had, else for those that exclude each other."""
    complaints = []
    for name, asked in named(model).items():
        operator = OPERATORS[name]
        if facts.family not in operator.families:
            complaints.append(f"operators: {name}: a {facts.family} has none; leave it out")
        elif asked != "best":
            implementation = _of_word(operator, asked, facts.family)
            if reason := why_not(name, implementation, facts):
                complaints.append(_refusal(model, name, implementation, reason))
    return complaints or _clashes(_chosen(model, facts))


def _chosen(model: ModelSettings, facts: Facts) -> dict[str, str]:
    """The implementation of each operator of the family; ``best`` ones last, since they give way to the others."""
    asked, word = named(model), str(model.operators.get(OTHERS, "default"))
    here = {name: operator for name, operator in OPERATORS.items() if facts.family in operator.families}
    words = {name: asked.get(name, word) for name in here}
    chosen = {name: _of_word(here[name], w, facts.family) for name, w in words.items() if w != "best"}
    for name, operator in here.items():
        if name not in chosen:
            chosen[name] = _best(name, operator, facts, chosen)
    return {name: chosen[name] for name in here}


def why_not(name: str, implementation: str, facts: Facts) -> str:
    """Why ``implementation`` of an operator cannot be had, as what is said of it; or an empty text."""
    operator = OPERATORS[name]
    choice = operator.choices[implementation]
    if choice.families and facts.family not in choice.families:
        return f"is not for a {facts.family}, which has {', '.join(operator.choices_of(facts.family))}"
    if choice.only_cuda and facts.device not in ("cuda", None):
        elsewhere = [n for n in operator.choices_of(facts.family) if n in (*operator.best["cpu"], operator.naive)]
        return f"{choice.only_cuda}; give {' or '.join(sorted(elsewhere, key=lambda n: n == operator.naive))}"
    if choice.torch > facts.torch:
        return f"is torch's from {'.'.join(map(str, choice.torch))} on, this is {'.'.join(map(str, facts.torch))}"
    if facts.device in choice.half_on and facts.dtype == "fp32":
        return f"has no float32; give --mixed_precision bf16, or {operator.best['cpu'][0]}"
    if choice.only_fp32 and facts.dtype in ("bf16", "fp16"):
        return choice.only_fp32
    lacking = facts.lacks(choice.extra) if choice.extra else None
    return f"needs a package: {lacking}" if lacking else ""


def _refusal(model: ModelSettings, name: str, implementation: str, reason: str) -> str:
    """The complaint, which begins with the flag that the user gave."""
    flag = OPERATORS[name].flag if name not in model.operators else ""
    return f"{flag or f'operators: {name}'}: {implementation} {reason}"


def _of_word(operator: Operator, asked: str, family: str) -> str:
    """The implementation for which a word stands; of an implementation's name, that."""
    return {"naive": operator.naive, "default": operator.default_of(family)}.get(asked, asked)


def _best(name: str, operator: Operator, facts: Facts, chosen: Mapping[str, str]) -> str:
    for implementation in operator.best[facts.device or "cpu"]:
        clash = _clashes({**chosen, name: implementation})
        if not clash and not why_not(name, implementation, facts):
            return implementation
    return operator.default_of(facts.family)


def _clashes(chosen: Mapping[str, str]) -> list[str]:
    """A complaint for each pair of implementations that cannot be had together."""
    pairs = set(chosen.items())
    return [
        f"operators: {' '.join(c.first)} and {' '.join(c.second)} cannot be had together: {c.reason}"
        for c in CONFLICTS
        if {c.first, c.second} <= pairs
    ]


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
