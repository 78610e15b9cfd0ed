"""Activations over real ranks: against torch's own collectives, and the laws; each law fails for a broken wiring."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import comm_compress as cc
from comm_compress.drive import transport
from comm_compress.integrations.parallel.places import collectives, operators, recomputation
from comm_compress.integrations.parallel.places.collectives import row_length
from tests.distributed import run_ranks

METHODS = ["identity", "int8", "fp8", "int4 hadamard", "bf16", "nc", "qsgd", "topk ratio=0.5 error_feedback=false"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, alike: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(0 if alike else dist.get_rank() + 1)
    return torch.randn(shape, generator=generator).to(dtype)


def calls(place: cc.parallel.Place, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
    """Every operator with its input; shapes that ranks divide, that they do not, and without elements."""
    world = place.world
    sizes = [2 * r + 1 for r in range(world)]
    for shape in ((2, 3, 8), (1, 5, 7), (0, 4), ()):
        yield f"all_reduce {shape}", place.all_reduce, drawn(shape, dtype)
        yield f"copy {shape}", place.copy, drawn(shape, dtype, alike=True)
    for dim, shape in ((0, (2, 3)), (1, (2, 3, 4)), (-1, (1, 2, 3)), (0, (0, 3))):
        whole = list(shape)
        whole[dim] *= world
        yield f"all_gather {dim} {shape}", lambda x, d=dim: place.all_gather(x, d), drawn(shape, dtype)
        yield f"reduce_scatter {dim} {shape}", lambda x, d=dim: place.reduce_scatter(x, d), drawn((*whole,), dtype)
    mine = sizes[place.rank]
    for dim, part, full in ((0, (mine, 6), (sum(sizes), 6)), (1, (2, mine, 6), (2, sum(sizes), 6))):
        yield f"parts gathered {dim}", lambda x, d=dim: place.all_gather(x, d, sizes), drawn(part, dtype)
        yield f"parts scattered {dim}", lambda x, d=dim: place.reduce_scatter(x, d, sizes), drawn(full, dtype)


def both_ways(method: str | None, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """Output and input's gradient of every call; the gradient that comes back differs from rank to rank."""
    place = cc.parallel.Activations(method, method).place("x", group())
    found = {}
    fixed = method is None or (isinstance(place.forward.method, cc.Codec) and place.forward.method.fixed_size)
    for name, call, x in calls(place, dtype):
        if fixed or "parts" not in name:
            before = x.clone()
            y = call(x.requires_grad_())
            y.backward(drawn(tuple(y.shape), dtype))
            assert x.grad is not None
            assert torch.equal(x.detach(), before), "the input is the caller's"
            found[name] = (y.detach(), x.grad)
    return found


def identity_is_stock() -> list[str]:
    wrong = []
    for dtype in DTYPES:
        ours, theirs = both_ways("identity", dtype), both_ways(None, dtype)
        for name, pair in theirs.items():
            for a, b in zip(ours[name], pair, strict=True):
                within = 1e-6 if dtype == torch.float32 else 2e-2  # torch's own sums round at every rank
                near = torch.equal(a, b) if dist.get_world_size() <= 2 else torch.allclose(a, b, within, within)
                if not near or a.dtype != b.dtype or a.shape != b.shape:
                    wrong.append(f"{name} {dtype}")
    return wrong


def definition(name: str, inputs: list[Tensor], gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Output and input's gradient of one call on this rank, from what all ranks hold; sums in rank order."""
    rank = dist.get_rank()
    if name.startswith("all_reduce"):
        return sum(inputs[1:], inputs[0]), gradients[rank]
    if name.startswith("copy"):
        return inputs[rank], sum(gradients[1:], gradients[0])
    dim = int(name.split()[2] if name.startswith("parts") else name.split()[1])
    joined = "gather" in name
    parts, whole = (inputs, gradients) if joined else (gradients, inputs)
    sizes = [part.shape[dim] for part in parts]
    mine = torch.split(sum(whole[1:], whole[0]), sizes, dim)[rank]
    return (torch.cat(parts, dim), mine) if joined else (mine, torch.cat(parts, dim))


def outputs_and_gradients_are_the_definitions() -> list[str]:
    """Of torch's own collectives and of identity's, against sums and joins of what all ranks hold."""
    wrong = []
    for method in (None, "identity"):
        place = cc.parallel.Activations(method, method).place("x", group())
        found = both_ways(method, torch.float32)
        for name, _, x in calls(place, torch.float32):
            held: list[Any] = [None] * place.world
            dist.all_gather_object(held, (x, drawn(tuple(found[name][0].shape))))
            expected = definition(name, [pair[0] for pair in held], [pair[1] for pair in held])
            exact = place.world <= 2
            for a, b in zip(found[name], expected, strict=True):
                if a.shape != b.shape or not (torch.equal(a, b) if exact else torch.allclose(a, b, 1e-6, 1e-6)):
                    wrong.append(f"{method} {name}")
    return wrong


def what_is_replicated_stays_so() -> list[str]:
    wrong = []
    for method in METHODS:
        for name, (output, gradient) in both_ways(method, torch.float32).items():
            alike = gradient if name.startswith("copy") else output
            if not name.startswith(("all_reduce", "copy", "all_gather", "parts gathered")):
                continue
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, alike.tolist())
            if any(other != everyone[0] for other in everyone):
                wrong.append(f"{method} {name}")
    return wrong


def gradients_are_those_of_the_exact_collective() -> list[str]:
    """Compressed forward, stock backward: the gradient is the stock's, whatever forward lost."""
    wrong = []
    activations = cc.parallel.Activations("int4", None)
    place, exact = activations.place("x", group()), cc.parallel.Activations().place("x", group())
    pairs = zip(calls(place, torch.float32), calls(exact, torch.float32), strict=True)
    for (name, call, x), (_, reference, z) in pairs:
        y, w = call(x.requires_grad_()), reference(z.requires_grad_())
        gradient = drawn(tuple(y.shape))
        y.backward(gradient)
        w.backward(gradient)
        if x.grad is None or z.grad is None or not torch.equal(x.grad, z.grad):
            wrong.append(name)
    return wrong


def nothing_is_sent_twice() -> list[str]:
    activations = cc.parallel.Activations("int8", "int8")
    first, second = activations.place("first", group()), activations.place("second", group())
    weight = torch.eye(8) * 1.5

    def block(x: Tensor) -> Tensor:
        return second.all_reduce(torch.tanh(first.all_reduce(x @ weight)) @ weight).sin()

    x, z = drawn((4, 8)).requires_grad_(), drawn((4, 8)).requires_grad_()
    again = checkpoint(block, x, use_reentrant=False, context_fn=activations.recomputation)
    again.sum().backward()
    sent = activations.ledger.totals("activations")
    plain = block(z)
    plain.sum().backward()
    wrong = [] if sent.calls == (2 if first.world > 1 else 0) else [f"{sent.calls} calls"]
    if not torch.equal(again, plain):
        wrong.append("another output")
    return wrong + ([] if torch.equal(x.grad, z.grad) else ["another gradient"])


def counted_is_sent() -> list[str]:
    wrong = []
    for method in METHODS:
        activations = cc.parallel.Activations(method, method)
        place, sent = activations.place("x", group()), [0, 0]
        isend = dist.isend

        def counting(tensor: Tensor, *args: Any, sent: list[int] = sent, isend: Any = isend, **rest: Any) -> Any:
            sent[0] += tensor.nbytes
            sent[1] += 1
            return isend(tensor, *args, **rest)

        with mock.patch.object(transport.dist, "isend", counting):
            for name, call, x in calls(place, torch.float32):
                if "parts" not in name or place.forward.method.fixed_size:
                    call(x.requires_grad_()).sum().backward()
        totals = activations.ledger.totals()
        if (totals.sent_bytes, totals.messages) != (sent[0], sent[1]):
            wrong.append(f"{method}: {totals.sent_bytes} counted, {sent} sent")
        if method == "identity" and totals.sent_bytes != totals.raw_bytes:
            wrong.append(f"identity: {totals.raw_bytes} B raw, {totals.sent_bytes} sent")
    return wrong


def nan_is_seen_everywhere() -> list[str]:
    wrong = []
    for method in METHODS:
        place = cc.parallel.Activations(method, method).place("x", group())
        for name, call, x in calls(place, torch.float32):
            if name.startswith("copy") or not x.numel():
                continue
            for where in (0, -1):
                bad = x.detach().clone()
                if dist.get_rank() == 0:
                    bad.view(-1)[where] = torch.nan
                y = call(bad)
                if y.numel() and torch.isfinite(y).all():
                    wrong.append(f"{method} {name}")
    return wrong


LAWS = [
    identity_is_stock,
    outputs_and_gradients_are_the_definitions,
    what_is_replicated_stays_so,
    gradients_are_those_of_the_exact_collective,
    nothing_is_sent_twice,
    counted_is_sent,
    nan_is_seen_everywhere,
]


def passes_on(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient, None


def scaled(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """The gradient is rounded as activations are, by the method of forward."""
    return ctx.place.forward.all_reduce(gradient), None


def own_part_of_own(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    """This rank's part of its own gradient, the other ranks' forgotten: Galaxy-LM's mistake."""
    sizes = ctx.sizes or [gradient.shape[ctx.dim] // ctx.place.world] * ctx.place.world
    return torch.split(gradient, list(sizes), ctx.dim)[ctx.place.rank], None, None, None


def own_row(x: Tensor, method: Any, state: Any) -> Iterator[Any]:
    """An all-reduce whose owner keeps what it did not send: the ranks' results differ."""
    result = yield from _all_reduce(x, method, state)
    return result + 1e-3 * state.rank


_all_reduce = collectives.all_reduce
SABOTEURS: list[tuple[Any, Any, str, Any]] = [
    (outputs_and_gradients_are_the_definitions, operators.Copy, "backward", staticmethod(passes_on)),
    (outputs_and_gradients_are_the_definitions, operators.AllGather, "backward", staticmethod(own_part_of_own)),
    (identity_is_stock, collectives, "all_reduce", own_row),
    (what_is_replicated_stays_so, collectives, "all_reduce", own_row),
    (gradients_are_those_of_the_exact_collective, operators.Copy, "backward", staticmethod(scaled)),
    (nothing_is_sent_twice, recomputation.Recomputation, "once", lambda self, place, send: send()),
    (counted_is_sent, transport, "sent_by", lambda request, rank, world: cc.ByteCount(values=1)),
    (nan_is_seen_everywhere, collectives, "_marked", lambda rows, state: rows),
]


def _verdicts() -> dict[str, list[str]]:
    return {law.__name__: law() for law in LAWS}


def _sabotaged() -> list[bool]:
    caught = []
    for law, target, name, broken in SABOTEURS:
        with mock.patch.object(target, name, broken):
            caught.append(bool(law()))
    return caught


@pytest.mark.parametrize("world", [1, 2, 3])
def test_laws(world: int) -> None:
    for rank, verdicts in enumerate(run_ranks(world, _verdicts)):
        assert not any(verdicts.values()), (rank, verdicts)


def test_every_law_catches_its_saboteur() -> None:
    seen = zip(*run_ranks(2, _sabotaged), strict=True)
    missed = [
        (law.__name__, name) for (law, _, name, _), caught in zip(SABOTEURS, seen, strict=True) if not any(caught)
    ]
    assert not missed


def test_refusals() -> None:
    for method in ("topk", "powersgd", "randomk", "int8 scale=global", "delta", "dgc", "int8 error_feedback=true"):
        with pytest.raises(ValueError, match=r"forward: .* cannot carry activations|forward: "):
            cc.parallel.Activations(method)
    layers = {"method": "int8", "layers": {"mlp": "topk"}}
    with pytest.raises(ValueError, match="backward: topk cannot carry activations: its error_feedback"):
        cc.parallel.Activations(backward=layers)


def _patterns() -> list[str]:
    activations = cc.parallel.Activations({"method": "int8", "layers": {"layers.0.*": "identity", "*.head": "bf16"}})
    place, head = activations.place("layers.0.mlp", group()), activations.place("layers.1.mlp", group())
    said = [str(way.forward.method.name) for way in (place, head) if way.forward.method is not None]
    for wrong in (
        activations.check_names,
        lambda: activations.place("layers.0.mlp", group()),
        lambda: place.reduce_scatter(torch.ones(1, 3), 1, [1, 1]),
        lambda: place.reduce_scatter(torch.ones(3)),
        lambda: place.all_gather(torch.ones(3), 0, [1]),
        lambda: place.copy(torch.ones(2, dtype=torch.int64)),
    ):
        with contextlib.suppress(ValueError):
            wrong()  # type: ignore[operator]
            said.append("not refused")
    return said


def test_methods_by_place_and_what_is_refused() -> None:
    assert run_ranks(2, _patterns) == [["identity", "int8"]] * 2


def test_rows_are_whole_tokens_where_that_costs_little() -> None:
    assert row_length(torch.Size((4, 8, 64)), 3) == 11 * 64
    assert row_length(torch.Size((1, 64)), 2) == 32
    assert row_length(torch.Size(()), 2) == 1
    assert row_length(torch.Size((0, 4)), 2) == 0
