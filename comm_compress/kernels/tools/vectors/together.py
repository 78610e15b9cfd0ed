"""Chosen lanes of 32, moved together before they are stored, and apart after they were loaded.

Where the machine has AVX-512's instructions for that they are named; elsewhere plain loads and stores, one lane after
the other and without branches, take their place. (Whether a lane is chosen is often a toss that no processor predicts.)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from comm_compress.kernels.tools.vectors.llvm import BOOL, LONG, SHORT, WORD, call, has_features
from comm_compress.kernels.tools.vectors.vectors import LANES

MASK = ir.VectorType(BOOL, LANES)
FEATURE = {16: "avx512vbmi2", 32: "avx512f"}  # that such instructions for numbers of so many bits belong to
REGISTER = 512  # bits


def store_together(context: Any, builder: Any, x: Any, chosen: Any, start: Any) -> None:
    """Store the chosen lanes of ``x`` one after the other; up to 32 numbers are written."""
    kind = x.type.element
    if not has_features(context, FEATURE[kind.width]):
        for lane, bit in enumerate(_bits(builder, chosen)):
            builder.store(builder.extract_element(x, WORD(lane)), start, align=kind.width // 8)
            start = builder.gep(start, [bit])
        return
    for part, mask in _parts(builder, x, chosen):
        nothing = ir.Constant(part.type, None)
        name = f"llvm.x86.avx512.mask.compress.v{part.type.count}i{kind.width}"
        together = call(builder, name, part.type, [part, nothing, mask])
        builder.store(together, builder.bitcast(start, part.type.as_pointer()), align=kind.width // 8)
        start = builder.gep(start, [_number(builder, mask)])


def load_apart(context: Any, builder: Any, x: Any, chosen: Any, start: Any) -> Any:
    """``x`` with numbers from ``start`` on, one after the other, in its chosen lanes; up to 32 are read."""
    kind = x.type.element
    if not has_features(context, FEATURE[kind.width]):
        apart = ir.Constant(x.type, ir.Undefined)
        for lane, bit in enumerate(_bits(builder, chosen)):
            apart = builder.insert_element(apart, builder.load(start, align=kind.width // 8), WORD(lane))
            start = builder.gep(start, [bit])
        return builder.select(chosen, apart, x)
    found = []
    for part, mask in _parts(builder, x, chosen):
        coming = builder.load(builder.bitcast(start, part.type.as_pointer()), align=kind.width // 8)
        name = f"llvm.x86.avx512.mask.expand.v{part.type.count}i{kind.width}"
        found.append(call(builder, name, part.type, [coming, part, mask]))
        start = builder.gep(start, [_number(builder, mask)])
    return found[0] if len(found) == 1 else builder.shuffle_vector(*found, _places(range(LANES)))


def _parts(builder: Any, x: Any, chosen: Any) -> list[tuple[Any, Any]]:
    """A vector and its mask, in pieces of a register."""
    lanes = REGISTER // x.type.element.width
    if lanes == LANES:
        return [(x, chosen)]
    places = [_places(range(first, first + lanes)) for first in range(0, LANES, lanes)]
    return [(builder.shuffle_vector(x, x, p), builder.shuffle_vector(chosen, chosen, p)) for p in places]


def _places(lanes: range) -> Any:
    return ir.Constant(ir.VectorType(WORD, len(lanes)), list(lanes))


def _number(builder: Any, mask: Any) -> Any:
    """How many lanes a mask chooses."""
    return builder.zext(builder.ctpop(builder.bitcast(mask, ir.IntType(mask.type.count))), LONG)


def _bits(builder: Any, chosen: Any) -> list[Any]:
    """The bits of a mask, each as a number."""
    return [builder.zext(builder.extract_element(chosen, WORD(lane)), LONG) for lane in range(LANES)]


assert SHORT.width in FEATURE
assert WORD.width in FEATURE
