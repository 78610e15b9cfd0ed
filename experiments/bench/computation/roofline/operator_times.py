"""What a profiled step was spent on: every operator's own time, put to one of a few kinds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from torch.autograd.profiler_util import FunctionEvent

BODY, HEAD, ATTENTION = "products of the blocks", "products of the head", "attention"
LOSS, REST, FSDP, OPTIMIZER = "the loss beside its products", "norms, activations, sums", "FSDP2", "optimizer"
KINDS = (BODY, HEAD, ATTENTION, LOSS, REST, FSDP, OPTIMIZER)
BETWEEN = "between operators"
"""What is left of a step: Python, autograd's engine, waiting."""
_PRODUCTS = {  # which input the first factor is; the second follows
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
}
_ATTENTION = "scaled_dot_product"
_FSDP = ("FSDP::", "fsdp::", "c10d::", "gloo:", "nccl:")
_LOSS = ("_Loss", "aten::log_softmax", "aten::nll_loss", "aten::linear_cross_entropy")
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Product:
    """A matrix product by its shapes: ``[rows, inner] x [inner, columns]``, ``batch`` of them at once."""

    rows: int
    inner: int
    columns: int
    batch: int = 1

    def flops(self) -> int:
        """How many multiplications and additions the product takes, all of its batch together."""
        return 2 * self.batch * self.rows * self.inner * self.columns


@dataclass
class Spent:
    """Seconds a step by kind of operator (`KINDS`); of each product its calls and seconds a step, and its kind."""

    seconds: dict[str, float]
    products: dict[Product, tuple[float, float]]
    kind_of: dict[Product, str]

    def flops(self, kind: str) -> float:
        """FLOP a step of the products of ``kind``."""
        return sum(calls * p.flops() for p, (calls, _) in self.products.items() if self.kind_of[p] == kind)


def spent(events: Iterable[FunctionEvent], steps: int, vocabulary: int) -> Spent:
    """``events`` of a profile with shapes, over ``steps`` steps of a model with ``vocabulary`` tokens."""
    seconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    products: dict[Product, list[float]] = defaultdict(list)
    kind_of: dict[Product, str] = {}
    for event in events:
        above = list(_ancestors(event))
        if not any(parent.name in PHASES for parent in above):
            continue  # the phases themselves, whose own time is Python's, and what is outside of the steps
        kind = _kind(event, above, vocabulary)
        if kind is None:
            continue
        own = event.self_cpu_time_total / 1e6
        seconds[kind] += own / steps
        if kind in (BODY, HEAD):
            product = _product(event)
            products[product].append(own)
            kind_of[product] = kind
    by_product = {p: (len(each) / steps, sum(each) / steps) for p, each in products.items()}
    return Spent(seconds, by_product, kind_of)


def _kind(event: FunctionEvent, above: Sequence[FunctionEvent], vocabulary: int) -> str | None:
    """The kind of an operator; None of a span that is not one, such as autograd's engine."""
    names = [event.name, *(parent.name for parent in above)]
    if any(name == "optimizer" for name in names):
        return OPTIMIZER
    if any(name.startswith(_FSDP) for name in names):
        return FSDP
    if not event.name.startswith(("aten::", "mkldnn::")):
        return None
    has_vocabulary = any(vocabulary in shape for shape in _shapes(event))
    if event.name in _PRODUCTS:
        return HEAD if has_vocabulary else BODY
    if any(_ATTENTION in name for name in names):
        return ATTENTION
    if has_vocabulary or any(name.startswith(_LOSS) for name in names):
        return LOSS
    return REST


def _product(event: FunctionEvent) -> Product:
    first = _PRODUCTS[event.name]
    left, right = _shapes(event)[first : first + 2]
    return Product(left[-2], left[-1], right[-1], prod(left[:-2]))


def _shapes(event: FunctionEvent) -> list[list[int]]:
    """The sizes of each input; none of an input that is no tensor. torch's own annotation has one level too few."""
    return cast("list[list[int]]", event.input_shapes or [])


def _ancestors(event: FunctionEvent) -> Iterator[FunctionEvent]:
    while event.cpu_parent is not None:
        event = event.cpu_parent
        yield event
