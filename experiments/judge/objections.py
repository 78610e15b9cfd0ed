"""What a reviewer would object to in a method, from what was measured of it: sentences, each with its weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Fact = dict[str, Any]
SLOW = 0.1  # of a copy's rate, at which a codec takes longer than a 10 Gbit/s link on most machines


def objections(facts: Mapping[str, Sequence[Fact]], look: Fact) -> list[tuple[str, str]]:
    """Pairs of severity (error, warning, note) and sentence. Broken laws and checks are not among them."""
    return [*_of_size(facts, look), *_of_memory(facts), *_of_worlds(facts), *_of_traits(look), *_of_speed(facts)]


def _of_size(facts: Mapping[str, Sequence[Fact]], look: Fact) -> Iterator[tuple[str, str]]:
    if not look["size_depends_on_data"]:
        return
    bits = {
        fact["data"]: fact["bits"] for fact in facts.get("errors", ()) if fact["kind"] == "error" and fact["judged"]
    }
    shown = ", ".join(f"{value:.3g} on {data} elements" for data, value in bits.items())
    yield (
        "warning",
        f"how many bytes it sends depends on the data{': ' + shown + ' (bits)' if shown else ''}; nothing bounds them "
        "beforehand, and a comparison at equal bits holds for this model's gradients only",
    )


def _of_memory(facts: Mapping[str, Sequence[Fact]]) -> Iterator[tuple[str, str]]:
    for fact in facts.get("ranks", ()):
        if fact["kind"] != "memory":
            continue
        if fact["by_data"]:
            names = ", ".join(fact["by_data"])
            yield (
                "warning",
                f"it remembers something of the data outside of its `cc.State` ({names}): no checkpoint has that, a "
                "void step does not take it back, and nobody counts its memory",
            )
        if fact["alike"]:
            names = ", ".join(fact["alike"])
            yield "note", f"variables changed to the same content on all ranks ({names}): a cache, it seems"


def _of_worlds(facts: Mapping[str, Sequence[Fact]]) -> Iterator[tuple[str, str]]:
    worlds = [fact for fact in facts.get("errors", ()) if fact["kind"] == "world"]
    if len(worlds) > 1 and worlds[-1]["bits"] > 1.2 * worlds[0]["bits"]:
        yield (
            "warning",
            f"its bits grow with the ranks: {worlds[0]['bits']:.3g} at {worlds[0]['world']}, "
            f"{worlds[-1]['bits']:.3g} at {worlds[-1]['world']} (256 x 256 elements)",
        )
    if worlds and worlds[0]["rounds"] > 1:
        yield "warning", f"a reduce-scatter takes {worlds[0]['rounds']} rounds, each with the latency of the link"
    if worlds and worlds[0]["state_bytes"] > 0:
        yield "note", f"it keeps {worlds[0]['state_bytes']:.3g} bytes of state for each parameter and rank"


def _of_traits(look: Fact) -> Iterator[tuple[str, str]]:
    if not look["traits"]["additive"]:
        yield (
            "warning",
            "it says that totals are no sums of contributions, so no law checks what error feedback is told",
        )
    if not look["is_codec"]:
        yield "note", "it is no `cc.Codec`: its rounds are its own, and only bytes that were moved speak for them"
    if look["max_ranks"] is not None:
        yield "warning", f"it is defined for at most {look['max_ranks']} ranks"


def _of_speed(facts: Mapping[str, Sequence[Fact]]) -> Iterator[tuple[str, str]]:
    own = [fact for fact in facts.get("speed", ()) if fact["kind"] == "speed" and fact["judged"]]
    slow = [fact for fact in own if fact["memcpy_ratio"] < SLOW]
    if slow:
        shown = ", ".join(f"{fact['operation']} {fact['memcpy_ratio']:.2g}" for fact in slow)
        yield (
            "warning",
            f"it is slower than a tenth of a plain copy ({shown} of its rate, one thread): on fast links the codec "
            "costs more time than the bytes that it saves",
        )
