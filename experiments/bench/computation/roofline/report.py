"""A step under the ceilings of the machine, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.bench.computation.roofline.ceilings import Ceilings
from experiments.bench.computation.roofline.operator_times import (
    ATTENTION,
    BETWEEN,
    BODY,
    HEAD,
    KINDS,
    REST,
    Product,
    Spent,
)

_SHOWN = 12  # products in the table, those that take longest


@dataclass(frozen=True)
class Step:
    """One model's step. ``seconds``: the median of steps without a profiler; ``profiled``: of those with one.

    ``flops``: what MFU counts (`fsdp_lab.models.architectures.flops`), ``attention`` what of it is attention; what is
    left beside products is parameters that are vectors (norms, biases), which MFU counts like matrices.
    ``alone``: seconds of one call of a product by itself, into memory used before.
    """

    seconds: float
    profiled: float
    flops: float
    attention: float
    tokens: int
    spent: Spent
    alone: Mapping[Product, float]


def as_json(step: Step, ceilings: Ceilings, setting: Mapping[str, Any]) -> dict[str, Any]:
    """All figures: the ceilings, the kinds of a step (seconds, FLOP, points of MFU lost) and each product."""
    peak = ceilings.flops
    return {
        **setting,
        "ceilings": asdict(ceilings),
        "step_s": step.seconds,
        "profiled_step_s": step.profiled,
        "tokens_per_s": step.tokens / step.seconds,
        "flops": step.flops,
        "flops_of_products": _of_products(step),
        "mfu": None if peak is None else step.flops / step.seconds / peak,
        "mfu_of_product": step.flops / step.seconds / ceilings.product,
        "kinds": [_kind(name, seconds, step, peak) for name, seconds in _kinds(step)],
        "products": [
            {**asdict(p), "kind": step.spent.kind_of[p], "calls": calls, "step_s": s, "alone_s": step.alone.get(p)}
            for p, (calls, s) in _by_time(step)
        ],
    }


def _of_products(step: Step) -> float:
    return step.spent.flops(BODY) + step.spent.flops(HEAD)


def _kinds(step: Step) -> list[tuple[str, float]]:
    known = [(name, step.spent.seconds[name]) for name in KINDS]
    return [*known, (BETWEEN, step.profiled - sum(seconds for _, seconds in known))]


def _kind(name: str, seconds: float, step: Step, peak: float | None) -> dict[str, Any]:
    flops = {ATTENTION: step.attention, REST: step.flops - step.attention - _of_products(step)}.get(name)
    flops = step.spent.flops(name) if flops is None else flops
    at_peak = None if peak is None else flops / peak
    lost = None if at_peak is None else (seconds - at_peak) / step.profiled
    return {"kind": name, "step_s": seconds, "share": seconds / step.profiled, "flops": flops, "mfu_lost": lost}


def _by_time(step: Step) -> list[tuple[Product, tuple[float, float]]]:
    return sorted(step.spent.products.items(), key=lambda item: -item[1][1])


def markdown(result: Mapping[str, Any]) -> str:
    """The page of one model's step."""
    ceilings, peak = result["ceilings"], result["ceilings"]["flops"]
    lines = [
        f"# Where a step of {result['model']} goes",
        "",
        f"Made by `{result['command']}`.",
        "",
        f"{result['device']}, {result['threads']} threads; torch {result['torch']}, {result['malloc']}; one rank under "
        f"FSDP2; {result['batch_size']} x {result['length']} random tokens a step, {result['dtype']}, operators "
        f"{result['operators']}; the median of {result['steps']} steps, and {result['profiled_steps']} more with "
        f"torch.profiler, which take {result['profiled_step_s'] / result['step_s']:.2f} times as long.",
        "",
        "| the machine's ceilings | |",
        "|---|---:|",
        f"| multiplications and additions in registers | {_tera(peak)} |",
        f"| best square product ({ceilings['product_size']}) | {_product_rate(ceilings['product'], peak)} |",
        f"| copy of 256 MiB, read and written | {ceilings['copied'] / 1e9:.1f} GB/s |",
        "",
        f"{result['step_s']:.3f} s a step, {result['tokens_per_s']:,.0f} tokens/s, **MFU {_percent(result['mfu'])}** "
        f"({_percent(result['mfu_of_product'])} of the best square product).",
        "",
        "| a step's | s | share | FLOP counted | of the ceiling | points of MFU lost |",
        "|---|---:|---:|---:|---:|---:|",
        *(_kind_line(kind, peak) for kind in result["kinds"]),
        "",
        "The last column adds up to what MFU lacks to 100 % in the profiled steps. Attention counts in full, though "
        "half of it is skipped. Between operators: Python, autograd's engine, waiting.",
        "",
        "| product | calls a step | s a step | of the ceiling | alone |",
        "|---|---:|---:|---:|---:|",
        *(_product_line(product, peak) for product in result["products"][:_SHOWN]),
        "",
        "Rows x inner x columns, in whatever layout the step has them; alone: the same shapes by themselves, into "
        "memory used before.",
        "",
    ]
    return "\n".join(lines)


def _kind_line(kind: Mapping[str, Any], peak: float | None) -> str:
    rate = (
        ""
        if peak is None or not kind["flops"] or kind["kind"] == REST
        else _percent(kind["flops"] / kind["step_s"] / peak)
    )
    counted = f"{kind['flops'] / 1e9:,.0f} G" if kind["flops"] >= 1e9 else ""
    lost = "" if kind["mfu_lost"] is None else f"{100 * kind['mfu_lost']:.1f}"
    return f"| {kind['kind']} | {kind['step_s']:.3f} | {_percent(kind['share'])} | {counted} | {rate} | {lost} |"


def _product_line(product: Mapping[str, Any], peak: float | None) -> str:
    flops = Product(product["rows"], product["inner"], product["columns"], product["batch"]).flops()
    times = f"{product['batch']} x " if product["batch"] > 1 else ""
    shape = f"{times}{product['rows']} x {product['inner']} x {product['columns']}"
    rate = "" if peak is None else _percent(product["calls"] * flops / product["step_s"] / peak)
    alone = "" if peak is None or not product["alone_s"] else _percent(flops / product["alone_s"] / peak)
    return f"| {shape} | {product['calls']:g} | {product['step_s']:.3f} | {rate} | {alone} |"


def _tera(flops: float | None) -> str:
    return "not known" if flops is None else f"{flops / 1e12:.3f} TFLOP/s"


def _product_rate(flops: float, peak: float | None) -> str:
    return _tera(flops) if peak is None else f"{_tera(flops)}, {_percent(flops / peak)}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
