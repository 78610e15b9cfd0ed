"""DeMo: momentum that stays where it is, but for its fast components.

Peng, Chen, Su, Quesnelle, Kingma and Liu, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, get_args

from torch import Tensor

from comm_compress.core.rounds import Request
from comm_compress.core.segments import unflatten
from comm_compress.core.state import State
from comm_compress.integrations import allreduce
from comm_compress.integrations.optim.replicated.exchange import Replicas, UnderWay, layout
from comm_compress.integrations.optim.replicated.optimizer import Params, ReplicaOptimizer
from comm_compress.integrations.replicas.fragments import Fragment, local
from comm_compress.integrations.replicas.messages import fed_back, one_message, sum_of_whole_messages
from comm_compress.methods.sparsifiers.dct import DCT
from comm_compress.registry import AnyMethod, chosen

Mean = Literal["senders", "replicas"]
METHOD = "dct"
"""The paper's own method, with the settings of its public code: 32 cosines of a chunk of 64 x 64."""


class DeMo(ReplicaOptimizer):
    """Each replica keeps a momentum of its own, and sends only its fast components (arXiv 2411.19870).

        m   = decay m + g                       of this replica alone
        q   = the largest cosines of m          what is sent (``method``)
        m   = m - q                             what was not sent stays
        Q   = mean of all replicas' q           everyone's message goes to everyone
        x   = (1 - lr weight_decay) x - lr sign(Q)

    A momentum from which what was sent is subtracted is the residual of error feedback with a decay, so it is kept,
    saved and taken back as one. ``method``: any method that sends one message, its own feedback off; the paper's is
    "dct". The momentum is the only state: float32, as large as the parameters, and twice that, so that a step that
    turns out not to be finite can be taken back.

    What the paper and its public code leave open, or say differently:

    - ``mean``: "senders" divides a coefficient's sum by how many replicas sent it, as the public code does; "replicas"
      by how many there are, as an average of the messages is. The sign that follows makes the two differ only where
      coefficients of one chunk were sent by different numbers of replicas. "senders" is for "dct" alone.
    - The public code multiplies gradients by the rate before they enter the momentum, the paper does not; nor do we.
      It matters only while the rate changes, since the sign forgets all scale.
    - sign(0) = 0: a chunk of zeros is not moved.
    - It has no clipping; whoever clips does so by each replica's own norm.

    ``lr``, ``weight_decay``, ``decay`` (below 1; 0.999 in the paper); a group of ``params`` may have its own rates.
    Raises ValueError for methods that do not send one message.
    """

    def __init__(
        self,
        replicas: Replicas,
        params: Params | None = None,
        *,
        lr: float,
        weight_decay: float = 0.0,
        decay: float = 0.999,
        method: AnyMethod = METHOD,
        mean: Mean | None = None,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay = {decay!r}: must be at least 0 and less than 1")
        if mean not in (None, *get_args(Mean)):
            raise ValueError(f'mean = {mean!r}: must be "senders" or "replicas"')
        self._codec = one_message(chosen("method", method))
        allreduce.check_ranks(self._codec, replicas.world)
        self._codec.check_names([name for fragment in replicas.fragments for name in fragment.parameters])
        if mean == "senders" and not isinstance(self._codec, DCT):
            raise ValueError(f'mean = "senders": is for dct, {self._codec.name} sends no coefficients; give "replicas"')
        self._over_senders = isinstance(self._codec, DCT) and mean != "replicas"
        self._momentum = fed_back(self._codec, decay)
        super().__init__(replicas, params, {"lr": lr, "weight_decay": weight_decay})

    def _begin(self, fragment: Fragment, gradients: list[dict[str, Tensor]]) -> UnderWay:
        return self._replicas.begin(fragment, gradients, self._fast_components)

    def _fast_components(self, gradient: Tensor, state: State) -> Generator[Request, Any, Tensor]:
        """The rounds of one replica: its gradient ``[1, n]`` enters its momentum, whose fast components are sent."""
        added = self._codec.mean_over_senders if self._over_senders and isinstance(self._codec, DCT) else None
        return (yield from sum_of_whole_messages(gradient, self._momentum, state, added))

    def _apply(self, fragment: Fragment, made: Tensor) -> None:
        parts = unflatten(made.unsqueeze(0), layout(fragment.local(), 1))
        for p, direction in zip(fragment.parameters.values(), parts, strict=True):
            mine = self._decay(p)
            mine.add_(direction.sign().view_as(local(p)).to(mine.dtype), alpha=-self._settings(p)["lr"])
