"""Compression as the trainer sees it: attached per configuration, read out as the fields of a results row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import comm_compress as cc
from fsdp_lab.measure.profiling import OPS, OpTraffic
from fsdp_lab.measure.wire_check import Claim
from fsdp_lab.models import Sharded
from fsdp_lab.models.attached import Counted, Gathers, Replicas, Together
from fsdp_lab.settings.groups import BETWEEN_REPLICAS, CommConfig
from fsdp_lab.settings.methods import of_gradients, of_parameters


def _exchanges(model: Sharded[Any], config: CommConfig, seed: int, optimizer: str) -> Gathers | Replicas | None:
    """What the optimizer asks: for whole matrices (muon), for exchanges between replicas, or for nothing (adamw)."""
    if optimizer in BETWEEN_REPLICAS:
        return model.between_replicas(seed)
    return model.attach_optimizer(config, seed) if optimizer == "muon" else None


class Communication:
    """What ranks exchange: each operation is either counted by our handles, or left to FSDP2 and observed.

    ``optimizer``: adamw exchanges nothing, muon gathers matrices, others have exchanges of their own between replicas.
    """

    def __init__(self, model: Sharded[Any], config: CommConfig, seed: int, optimizer: str = "adamw") -> None:
        gradients, parameters = of_gradients(config), of_parameters(config)
        self._handle = model.attach(gradients, parameters, config, seed)
        self.exchanges = _exchanges(model, config, seed, optimizer)
        """What exchanges for the optimizer; None: it asks for nothing."""
        self._all: Counted = self._handle if self.exchanges is None else Together(self._handle, self.exchanges)
        # which counts everything
        self._arranged = self._handle if isinstance(self._handle, cc.parallel.Handles) else None
        self.ops: tuple[cc.Op, ...] = OPS if self._arranged is None else self._arranged.ops
        """The operations that there are."""
        self._hooked = {op: self._arranged is not None or getattr(self._handle, op) is not None for op in self.ops}
        if self.exchanges is not None:
            self.ops, self._hooked["optimizer"] = (*self.ops, "optimizer"), True
        self.outer = model.outer
        """What synchronises replicas that train by themselves; None: there are none."""
        self.stock = model.stock_traffic()
        self._counted_from = 0  # steps before that were counted by ranks that were arranged otherwise
        self._untimed_steps = 0
        self._untimed = {op: cc.Totals() for op in self.ops}
        self._since = 0, self._untimed_steps, self._untimed, self.by_op()
        self._comparing: tuple[cc.Comparisons, dict[cc.Op, cc.Totals]] | None = None

    @property
    def has_stock_direction(self) -> bool:
        """Is there a direction that passes no hook?"""
        return not all(self._hooked.values())

    @property
    def must_be_watched(self) -> bool:
        """Is there a direction that only a profile can see?"""
        return self.has_stock_direction and not self.stock.sent_bytes

    @property
    def _has_stock(self) -> bool:
        """Are some of the bytes computed, because collectives of torch's own send them?"""
        return self.has_stock_direction if self._arranged is None else self._arranged.is_stock

    def totals(self) -> cc.Totals:
        """Everything that our hooks sent so far on this rank, compressed."""
        return self._all.ledger.totals()

    def sent_bytes(self, steps: int) -> int | None:
        """What this rank sent in its first ``steps`` steps; None before stock collectives were seen."""
        if self.has_stock_direction and not self.stock.sent_bytes:
            return None
        counted = self.totals().sent_bytes * steps // max(steps - self._counted_from, 1)
        return counted + steps * self.stock.sent_bytes

    def claim(self) -> Claim:
        """What our hooks say they sent so far, on this rank, and in how many messages."""
        totals = self.totals()
        return Claim(totals.sent_bytes, totals.messages)

    def warmed_up(self, steps: int) -> None:
        """The process's first steps, up to ``steps``, are over: their times (compiling, new memory) do not count."""
        done, untimed_steps, untimed, before = self._since
        now = self.by_op()
        self._untimed_steps = untimed_steps + steps - done
        self._untimed = {op: untimed[op] + (now[op] - before[op]) for op in self.ops}

    @property
    def can_compare(self) -> bool:
        """Do gradients pass our hooks, where they can be compared with the exact ones?"""
        return self._arranged is None and self._hooked["reduce_scatter"]

    def begin_comparison(self) -> None:
        """Compare the gradients of the step that begins with the exact ones; its times do not count."""
        self._comparing = self._handle.compare(), self.by_op()

    def end_comparison(self) -> cc.Comparison | None:
        """This rank's part of the comparison, or None when nothing was compared."""
        if self._comparing is None:
            return None
        (comparisons, before), self._comparing = self._comparing, None
        comparisons.close()
        now = self.by_op()
        self._untimed = {op: self._untimed[op] + (now[op] - before[op]) for op in self.ops}
        self._untimed_steps += 1
        return comparisons.total()

    def is_hooked(self, op: cc.Op) -> bool:
        """Does this direction pass our hooks?"""
        return self._hooked[op]

    def by_op(self) -> dict[cc.Op, cc.Totals]:
        """What our hooks counted so far on this rank, by direction."""
        return {op: self._all.ledger.totals(op) for op in self.ops}

    def rollback(self) -> None:
        """Take back what the last step did to the compressors' states, because it was void."""
        self._handle.rollback()

    def gradients_come_scaled(self, scale: float) -> None:
        """The next backward's gradients are multiplied by ``scale``; they are compressed without it."""
        if isinstance(self._handle, cc.Handle | cc.parallel.Handles):  # virtual ranks know no float16
            self._handle.loss_scale = scale

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Evaluate with the float32 shards, gathered uncompressed and uncounted; of replicas that train by themselves
        with what they agreed on when they last synchronised, the same on all."""
        with nullcontext() if self.outer is None else self.outer.outer_parameters(), self._handle.exact():
            yield

    def state_dict(self) -> dict[str, Any]:
        """What was counted, plain values, and ``compressors``: the states of each rank that this process plays."""
        return {
            "compressors": self._all.state_dicts(),
            "ledgers": [ledger.state_dict() for ledger in self._all.ledgers],
            "untimed_steps": self._untimed_steps,
            "counted_from": self._counted_from,
            "untimed": {op: asdict(totals) for op, totals in self._untimed.items()},
            "stock": {op: asdict(traffic) for op, traffic in self.stock.ops.items()},
        }

    def load_counts(self, state: dict[str, Any], step: int) -> None:
        """Count on from what `state_dict` gave after ``step`` steps. ValueError: it is of ranks arranged otherwise."""
        try:
            if state["untimed"].keys() != set(self.ops):
                raise ValueError("other operations were counted before")
            for ledger, counted in zip(self._all.ledgers, state["ledgers"], strict=True):
                ledger.load_state_dict(counted)
        except ValueError as error:
            self._counted_from = self._untimed_steps = step
            self._since = step, step, self._untimed, self.by_op()
            raise ValueError(f"{error}; bytes are as if all steps had been like those after step {step}") from None
        self._counted_from = state.get("counted_from", 0)
        self._untimed_steps = state["untimed_steps"]
        self._untimed = {op: cc.Totals(**state["untimed"][op]) for op in self.ops}
        if not self.stock.sent_bytes:
            self.stock.ops = {op: OpTraffic(**state["stock"][op]) for op in OPS}
        self._since = step, self._untimed_steps, self._untimed, self.by_op()

    def load_compressors(self, states: Sequence[dict[str, Any]]) -> None:
        """Put back the states of each rank that this process plays. ValueError when they are of other ones."""
        self._all.load_state_dicts(states)

    @property
    def _outer_bytes(self) -> int:
        """What this rank keeps of the outer parameters, of their optimizer, and of gradients that are added up."""
        return 0 if self.outer is None else self.outer.kept_bytes

    def rows(self, steps: int, step_ms_mean: float) -> list[dict[str, Any]]:
        """The communication fields of a results row, of each rank that this process plays, over ``steps`` steps.

        Bytes are those of all steps; times those of the steps after the warm-up that had no sample in them, as if all
        had been like them. What follows from these is left to `results.derived`.
        """
        return [self._row(ledger, steps, step_ms_mean) for ledger in self._all.ledgers]

    def _row(self, ledger: cc.Ledger, steps: int, step_ms_mean: float) -> dict[str, Any]:
        by_op = {op: ledger.totals(op) for op in self.ops}
        steady = {op: by_op[op] - self._untimed[op] for op in self.ops}
        scale = steps / max(steps - self._untimed_steps, 1)
        all_steps = Fraction(steps, max(steps - self._counted_from, 1))
        raw, sent, elements, milliseconds = {}, {}, {}, {}
        for op in self.ops:
            if self._hooked[op]:
                counted = by_op[op]
                raw[op], sent[op], elements[op] = (
                    int(number * all_steps) for number in (counted.raw_bytes, counted.sent_bytes, counted.elements)
                )
                milliseconds[op] = steady[op].wire_ms * scale
            else:
                seen = self.stock.ops[op]
                raw[op], sent[op] = seen.raw_bytes * steps, seen.sent_bytes * steps
                elements[op], milliseconds[op] = seen.elements * steps, seen.milliseconds * steps
        whole = ledger.totals()
        hooked = any(self._hooked.values())
        is_timed = self._arranged is None or self._arranged.are_timed
        total_ms = sum(milliseconds.values()) if is_timed else None
        return {
            "comm_time_ms_total": total_ms,
            "comm_ratio": None if total_ms is None else total_ms / (steps * step_ms_mean),
            "comm_time_ms_by_op": milliseconds if is_timed else None,
            "comm_time_source": None if not is_timed else "ledger" if hooked else "profiler",
            "compress_time_ms_total": sum(t.encode_ms for t in steady.values()) * scale if hooked else None,
            "decompress_time_ms_total": sum(t.decode_ms for t in steady.values()) * scale if hooked else None,
            "extra_collectives": whole.extra_collectives if hooked else None,
            "extra_collectives_time_ms_total": sum(t.extra_ms for t in steady.values()) * scale if hooked else None,
            "bytes_raw_total": sum(raw.values()),
            "bytes_compressed_total": sum(sent.values()),
            "bytes_raw_by_op": raw,
            "bytes_compressed_by_op": sent,
            "elements_by_op": elements,
            "value_bytes": int(whole.value_bytes * all_steps) if hooked else None,
            "index_bytes": int(whole.index_bytes * all_steps) if hooked else None,
            "metadata_bytes": int(whole.metadata_bytes * all_steps) if hooked else None,
            "bytes_source": "computed" if self._has_stock or self._counted_from else "counted",
            "feedback_bytes": self._all.state_bytes - self._outer_bytes if hooked else None,
            "outer_bytes": self._outer_bytes if self.outer is not None else None,
        }
