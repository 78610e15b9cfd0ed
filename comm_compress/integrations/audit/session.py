"""`cc.audit`: count what this process sends by collectives while a block runs.

How it looks: a `TorchDispatchMode` sees every operator that reaches torch's dispatcher. All collectives of a process
group do, whoever calls them: FSDP2, DDP's reducer (C++), DTensor, pipelines, the hooks of comm_compress. It sees them
in the thread that entered the block, and in the threads of autograd that work for this thread's backward. What another
thread of the user's does is not seen, nor what goes past the dispatcher (symmetric memory's puts, a store's
traffic, NCCL called by a library of its own).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol, Self, get_args

from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from comm_compress.core.ledger import Ledger, Op, Totals
from comm_compress.integrations.audit.callers import Caller, caller
from comm_compress.integrations.audit.calls import is_communication, read
from comm_compress.integrations.audit.lines import Line
from comm_compress.integrations.audit.table import Claim, table

_OPS: tuple[Op, ...] = get_args(Op)


class _Counts(Protocol):
    """Whatever has ledgers: the handle of `attach`, of `ddp`, of virtual ranks."""

    @property
    def ledgers(self) -> list[Ledger]: ...


class Audit(TorchDispatchMode):
    """What was counted so far; a context manager, made by `audit`. It can be entered again and then counts on."""

    supports_higher_order_operators = True  # they are let through: collectives inside come by on their own

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile, as it would not under other modes, and see what the compiled code calls."""
        return True

    def __init__(self, handles: tuple[_Counts, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handles = handles
        self._lines: dict[tuple[str, ...], Line] = {}
        self._before: list[Totals] = []
        self._claimed: dict[str, int] = {}
        self.not_counted: dict[str, int] = {}

    @property
    def lines(self) -> list[Line]:
        """What was counted, the most bytes first."""
        return sorted(self._lines.values(), key=lambda line: (-line.sent_bytes, -line.payload_bytes, line.op))

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank sent to other ranks, by its backends' conventions."""
        return sum(line.sent_bytes for line in self._lines.values())

    @property
    def claims(self) -> list[Claim]:
        """What the handles' ledgers entered while the audit ran, by operation; None for what they do not count."""
        uncounted = {op for handle in self._handles for ledger in handle.ledgers for op in ledger.uncounted}
        return [Claim(op, self._claimed.get(op)) for op in sorted({*self._claimed, *uncounted})]

    def rows(self) -> list[dict[str, Any]]:
        """`lines` as plain values, for a JSON file."""
        return [asdict(line) for line in self.lines]

    def table(self) -> str:
        """The lines by collective, group, dtype and caller, then sums by who called, then the ledgers' claims."""
        return table(self.lines, self.claims if self._handles else None, self.not_counted)

    def __enter__(self) -> Self:
        self._before = self._totals()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        for op, after, before in zip(_OPS * len(self._before), self._totals(), self._before, strict=False):
            if after.calls > before.calls:
                self._claimed[op] = self._claimed.get(op, 0) + after.sent_bytes - before.sent_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the call, and make it."""
        if isinstance(func, HigherOrderOperator) or FakeTensor in types:  # shapes are worked out; nothing moves
            return func(*args, **(kwargs or {}))
        if any(kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
            # A tensor that acts by itself, such as DTensor: the operators that it makes of this one come by next.
            return NotImplemented
        if is_communication(func):
            self._note(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _totals(self) -> list[Totals]:
        return [ledger.totals(op) for handle in self._handles for ledger in handle.ledgers for op in _OPS]

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Line | None:
        """Count the call; the line that it belongs to, or None where it can only be named."""
        call = read(func, args, kwargs)
        if call is None:
            self.not_counted[func.name()] = self.not_counted.get(func.name(), 0) + 1
            return None
        line = self._line(call.op, call.group, call.dtype, caller())
        line.calls += 1
        line.payload_bytes += call.payload
        line.sent_bytes += call.sent
        line.ring_bytes += call.ring
        return line

    def _line(self, op: str, group: str, dtype: str, by: Caller) -> Line:
        key = (op, group, dtype, by.where, by.through)
        return self._lines.setdefault(key, Line(*key, code=by.code, stack=by.stack))


def audit(*handles: _Counts) -> Audit:
    """Count every collective of this process while the block runs, whoever calls it.

        with cc.audit(handle) as audit:      # without handles, too, and where comm_compress is not attached at all
            train_a_few_steps()
        print(audit.table())

    Counting changes no number, but makes every operator of torch slower, so do not time steps inside. With ``handles``,
    the table also says what their ledgers claim. Each rank counts its own; nothing is sent for it.
    What is seen and what is not: `session`; what a collective sends: `wire`.
    """
    return Audit(handles)
