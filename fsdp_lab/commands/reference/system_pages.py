"""Published systems as text: the list and one system for a terminal, and all of them as a page of the reference."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping

import comm_compress as cc
from fsdp_lab.commands.reference.method_pages import plain
from fsdp_lab.settings.systems.kinds import Recipe, System
from fsdp_lab.settings.systems.missing import MISSING
from fsdp_lab.settings.systems.table import SYSTEMS

_BITS = (
    "Bits of an element: gradients + parameters (one gather of them); -: not compressed; varies: with shapes or "
    "values. A step: of what two replicas exchange, a parameter and optimizer step. By the size of messages, scales "
    "and all."
)


# ---- for a terminal


def as_list(width: int) -> Iterator[str]:
    """Two lines for each recipe, and what cannot be run here."""
    yield f"{'--system':22}  {'bits':15}  compresses"
    for system in SYSTEMS:
        for recipe in system.recipes:
            yield f"{recipe.name:22}  {short_bits(recipe):15}  {compresses(recipe)}"
            yield from _wrapped(" " * 24, system.about if recipe is system.recipes[0] else recipe.about, width)
    yield ""
    yield from _wrapped("", f"{_BITS} One system in full: fsdp-lab systems sdp4bit", width)
    yield "\nNot here yet:"
    for missing in MISSING:
        yield from _wrapped(f"  {missing.name:10} ", f"{missing.why} ({missing.source})", width)


def as_page(system: System, width: int) -> Iterator[str]:
    """Yield the lines about one system, wrapped to ``width`` characters."""
    yield from _wrapped("", f"{system.name}: {system.about}", width)
    yield from _wrapped("  source      ", system.paper.reference if system.paper else "no paper", width)
    yield from _wrapped("\n  what it does  ", system.does, width)
    yield from _wrapped("  what is here  ", system.here, width)
    yield "\nWhat differs:"
    for text in system.differs:
        yield from _wrapped("  - ", text, width)
    for title, texts in (("Published", system.published), ("Measured here", system.measured)):
        if texts:
            yield f"\n{title}:"
        for text in texts:
            yield from _wrapped("  - ", text, width)
    for recipe in system.recipes:
        yield ""
        yield from _wrapped("", f"{recipe.name}: {recipe.about}", width)
        yield f"  run it      {command(recipe)}"
        yield from _wrapped("  the same    ", same(recipe), width)
        yield from _wrapped("  bits        ", long_bits(recipe), width)


def _wrapped(head: str, text: str, width: int) -> list[str]:
    below = " " * len(head.lstrip("\n"))
    options = {"initial_indent": head, "subsequent_indent": below, "break_long_words": False}
    return textwrap.wrap(plain(text), width, **options, break_on_hyphens=False, drop_whitespace=True)  # type: ignore[arg-type]


# ---- a recipe in words


def command(recipe: Recipe) -> str:
    """The shell line that runs a recipe on as few ranks as it takes."""
    ranks = max(recipe.ranks, *(least for least in recipe.needs.values() if isinstance(least, int)), 2)
    flags = "".join(f" --{flag} {value}" for flag, value in {**recipe.measured_with, **recipe.needs}.items())
    return f"fsdp-lab train --nproc-per-node {ranks}{flags} --system {recipe.name}"


def same(recipe: Recipe) -> str:
    """The flags that a recipe stands for, as one would type them."""
    names = {"comm_compress": "method"}
    return " ".join(f"--{names.get(flag, flag)} {_quoted(value)}" for flag, value in recipe.flags)


def _quoted(value: str) -> str:
    return value if shlex.quote(value) == value else f'"{value}"'  # no label has a quote or a dollar sign


def short_bits(recipe: Recipe) -> str:
    """A recipe's bits in a few letters: ``4.25 + 8.12``."""
    if (by_step := _by_step(recipe)) is not None:
        return f"{by_step:.3g} a step"
    if _is_between_replicas(recipe):
        return "varies, a step"
    gradients, parameters = _methods(recipe)
    return f"{_bits(gradients, recipe.gradient_bits)} + {_bits(parameters, recipe.parameter_bits)}"


def _by_step(recipe: Recipe) -> float | None:
    """Bits a parameter and optimizer step of what is exchanged between replicas alone; None: other traffic."""
    return recipe.outer_bits if recipe.optimizer_bits is None else recipe.optimizer_bits


def _is_between_replicas(recipe: Recipe) -> bool:
    """Does all of it travel between replicas, or for an optimizer, so that bits are those of a step?"""
    return "optimizer_compress" in recipe.settings or "outer_compress" in recipe.settings


def compresses(recipe: Recipe) -> str:
    """Which traffic a recipe compresses, in words."""
    if recipe.settings.get("outer_by_gradient") == "all":
        return "gradients that replicas have added up"
    if recipe.outer_bits is not None:
        return "what replicas have learnt"
    if "optimizer_compress" in recipe.settings:
        return "what the optimizer exchanges"
    named = zip(("gradients", "parameters"), _methods(recipe), strict=True)
    return ", ".join(what for what, method in named if method != "none")


def long_bits(recipe: Recipe) -> str:
    """What a recipe sends, as a sentence: an element, and a step in all where both directions are known."""
    if recipe.outer_bits is not None:
        text = "{:.3g} a parameter and optimizer step between two replicas, with a synchronisation every 30 steps"
        return text.format(recipe.outer_bits)
    if recipe.optimizer_bits is not None:
        return f"{recipe.optimizer_bits:.3g} a parameter and optimizer step between two replicas"
    if _is_between_replicas(recipe):
        return "varying with shapes"
    gradients, parameters = _methods(recipe)
    names = {"-": "not compressed", "varies": "varying with shapes or values"}
    said = [_bits(gradients, recipe.gradient_bits), _bits(parameters, recipe.parameter_bits)]
    text = "gradients {}, parameters {}".format(*(names.get(one, f"{one} an element") for one in said))
    if (between := recipe.settings.get("replica_compress")) is not None:
        return f"inside of a replica {text}; between replicas the sum of the gradients by {between}, there and back"
    if recipe.gradient_bits is None or recipe.parameter_bits is None:
        return text
    once = parameters == "delta" or "no reshard" in str(recipe.settings.get("comm_compress"))
    total = recipe.gradient_bits + recipe.parameter_bits * (1 if once else 2)
    gathers = "once" if once else "twice (forward, backward)"
    return f"{text}; parameters are gathered {gathers}, so at most {total:.4g} a parameter and step"


def _methods(recipe: Recipe) -> tuple[str, str]:
    """The names of a recipe's methods for gradients and parameters; ``none``: it says none."""
    settings: Mapping[str, str] = recipe.settings
    arm = cc.labels.parse_arm(settings.get("comm_compress", "none"))
    parameters = cc.labels.parse_label(settings["param_compress"]) if "param_compress" in settings else arm.parameters
    return arm.gradients.name, "none" if parameters is None else parameters.name


def _bits(method: str, bits: float | None) -> str:
    if method == "none":
        return "-"
    return "varies" if bits is None else f"{bits:.4g}"


# ---- for the reference


def reference() -> Iterator[str]:
    """The lines of the page about all systems, in Markdown."""
    yield "| `--system` | what it does | bits | compresses |"
    yield "|---|---|---|---|"
    for system in SYSTEMS:
        for recipe in system.recipes:
            text = system.about if recipe is system.recipes[0] else f"{system.name}: {recipe.about}"
            link = f"[`{recipe.name}`](#{_anchor(system.name)})"
            yield f"| {link} | {text} | {short_bits(recipe)} | {compresses(recipe)} |"
    yield ""
    yield (
        f"{_BITS} What a system does not say is left as the trainer has it, and may be given beside it; what "
        "contradicts it is refused. Rows have the settings, not the name: an arm is the same however it was typed."
    )
    for system in SYSTEMS:
        yield from _section(system)
    yield ""
    yield "## Not here yet"
    yield ""
    yield "Methods for activations are no systems of this list: [activations.md](../library/activations.md)."
    yield ""
    yield "| system | source | what is missing |"
    yield "|---|---|---|"
    for missing in MISSING:
        yield f"| {missing.name} | {missing.source} | {missing.why} |"


def _section(system: System) -> Iterator[str]:
    yield from ("", f"## {system.name}", "", f"{system.about[0].upper()}{system.about[1:]}.")
    yield from ("", f"- **Source**: {system.paper.reference if system.paper else 'no paper'}.")
    yield f"- **What it does**: {system.does}"
    yield f"- **What is here**: {system.here}"
    yield from (f"- **Differs**: {text}" for text in system.differs)
    yield from (f"- **Published**: {text}." for text in system.published)
    yield from (f"- **Measured here**: {text}." for text in system.measured)
    for recipe in system.recipes:
        yield from ("", f"`{recipe.name}`: {recipe.about}. Bits: {long_bits(recipe)}.", "")
        yield f"    {command(recipe)}"
        yield f"    # the same: {same(recipe)}"


def _anchor(name: str) -> str:
    """The name of a heading in links."""
    return "".join(letter for letter in name if letter.isalnum() or letter in "-_")
