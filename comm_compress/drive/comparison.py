"""How far a compressed gradient is from the exact one, looked at while training and kept out of the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from comm_compress.core.compressor import Compressor
from comm_compress.core.state import State
from comm_compress.wrappers.error_feedback import from_int8

_WAITING = ("residual", "v")  # error feedback's residual; dgc's velocity


@dataclass(frozen=True)
class Comparison:
    """Sums over elements, on one rank; add them over units, steps and ranks, then ask for what they say.

    ``g`` is the exact sum over ranks of their raw gradients (torch's own reduce-scatter in float32), ``c`` what the
    compressed reduce-scatter left in its place. Error feedback also sends what earlier steps left out, so
    that c answers for more than this step's g: the comparison is with g all the same, since g is what the step asked
    for. The mean divides both by the number of ranks, which no ratio here sees.
    """

    error: float = 0.0
    """|c - g|^2"""
    exact: float = 0.0
    """|g|^2"""
    reduced: float = 0.0
    """|c|^2"""
    product: float = 0.0
    """<c, g>"""
    residual: float = 0.0
    """The squared norm of what this rank kept back for later steps (error feedback, dgc)."""
    gradient: float = 0.0
    """The squared norm of this rank's own gradient."""
    carried: float = 0.0
    """How many elements of this rank's gradient its message makes non-zero; all, of a method that is not sparse."""
    elements: float = 0.0
    """How many elements this rank's gradient has."""

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def relative_error(self) -> float | None:
        """|c - g| / |g|: 0 when exact, 1 when nothing arrives; None when there is no gradient (or not a finite one)."""
        return _root_of(self.error, self.exact)

    @property
    def cosine(self) -> float | None:
        """<c, g> / (|c| |g|); None when either is zero or not finite."""
        norms = math.sqrt(self.reduced * self.exact)
        return min(1.0, self.product / norms) if 0 < norms < math.inf and math.isfinite(self.product) else None

    @property
    def residual_norm(self) -> float | None:
        """The norm of what all ranks kept back over the norm of their gradients: 0 without feedback."""
        return _root_of(self.residual, self.gradient)

    @property
    def density(self) -> float | None:
        """The share of elements that a rank's message makes non-zero; 1 for a method that is not sparse."""
        return self.carried / self.elements if self.elements else None


def _root_of(part: float, whole: float) -> float | None:
    return math.sqrt(part / whole) if 0 < whole < math.inf and math.isfinite(part) else None


class Comparisons:
    """Fills up while gradients are reduced, until `close`; a context manager. See `Handle.compare`."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._sums: dict[str, Tensor] = {}

    def close(self) -> None:
        """Stop comparing; the comparisons made so far stay."""
        self._stop()

    def __enter__(self) -> Comparisons:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def by_unit(self) -> dict[str, Comparison]:
        """This rank's part of each unit's comparison. On CUDA this waits for the device."""
        return {unit: Comparison(*sums.tolist()) for unit, sums in self._sums.items()}

    def total(self) -> Comparison:
        """Return this rank's part, all units together; the whole is the sum over the ranks."""
        return sum(self.by_unit().values(), Comparison())

    @torch.no_grad()
    def add(
        self,
        rows: Tensor,
        output: Tensor,
        exact: Callable[[], Tensor],
        compressor: Compressor,
        sent: Any,
        state: State,
    ) -> None:
        """Add one finished reduce-scatter: its input ``[W, n]``, its result ``[n]``, and what this rank ``sent``.

        ``exact``: asks for the float32 sum ``[n]`` that belongs in the result's place.
        """
        with record_function("comm_compress::compare"):
            pairs = [_norms(output, exact()), _waiting(state, rows.device), _squares(rows)]
            carried = torch.count_nonzero(compressor.contribution(sent)) if compressor.traits.sparse else rows.numel()
            counts = torch.tensor([float(carried), rows.numel()], dtype=torch.float64, device=rows.device)
            sums = torch.cat([*pairs, counts])
            self._sums[state.unit] = self._sums[state.unit] + sums if state.unit in self._sums else sums


def _norms(reduced: Tensor, exact: Tensor) -> Tensor:
    """Return |c - g|^2, |g|^2, |c|^2 and <c, g>, for c = ``reduced`` and g = ``exact``: float64 ``[4]``."""
    sums = torch.zeros(4, dtype=torch.float64, device=exact.device)
    for c, g in zip(_parts(reduced), _parts(exact), strict=True):
        error = c - g
        sums += torch.stack([(error * error).sum(), (g * g).sum(), (c * c).sum(), (c * g).sum()])
    return sums


def _squares(values: Tensor) -> Tensor:
    """Return the sum of squares, float64 ``[1]``."""
    return torch.stack([(part * part).sum() for part in _parts(values)]).sum().view(1)


def _parts(values: Tensor) -> Iterator[Tensor]:
    """Yield all values in float64, piece by piece: on a CPU as many as its second-level cache holds."""
    at_once = 1 << 24 if values.is_cuda else 1 << 16
    for part in torch.split(values.reshape(-1), at_once):
        yield part.double()


def _waiting(state: State, device: torch.device) -> Tensor:
    """Return the squared norm of what the collective under way kept back, float64 ``[1]``."""
    total = torch.zeros(1, dtype=torch.float64, device=device)
    for part in state.with_children():
        for name in _WAITING:
            waiting, scales = part.newest(name), part.newest(f"{name}_scales")
            if waiting is not None and scales is not None:
                waiting = from_int8(waiting, scales, torch.empty(waiting.shape, device=device))
            if waiting is not None:
                total += _squares(waiting)
    return total
