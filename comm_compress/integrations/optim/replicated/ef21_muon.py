"""EF21-Muon: steps of Muon on estimates that only compressed differences move, on the way there and on the way back.

Gruntkowska, Gaponov, Tovmasyan and Richtarik, "Error Feedback for Muon and Friends", ICLR 2026, arXiv 2510.00643.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded
from comm_compress.core.rounds import ExchangeParts, GatherParts, Request
from comm_compress.core.state import State
from comm_compress.integrations import allreduce
from comm_compress.integrations.optim.newton_schulz import RMS, matched, orthogonalised
from comm_compress.integrations.optim.replicated.exchange import Replicas, UnderWay, layout, next_version
from comm_compress.integrations.optim.replicated.optimizer import Params, ReplicaOptimizer
from comm_compress.integrations.optim.replicated.parts.servers import Piece, Servers
from comm_compress.integrations.optim.replicated.parts.whole import check_whole_matrices
from comm_compress.integrations.replicas.fragments import Fragment
from comm_compress.integrations.replicas.messages import joined, one_message, taken_apart
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod, chosen

METHOD = "topk ratio=0.1 values=nc"
"""The largest tenth of each parameter's elements, their values by natural compression."""


class EF21Muon(ReplicaOptimizer):
    """Muon for ``matrices``, sign descent for the rest, compressed both ways (arXiv 2510.00643, stochastic version).

    Replica j, with its own gradient g_j at the weights W that all replicas have, and for each parameter by itself:

        M_j = momentum M_j + (1 - momentum) g_j
        R_j = C(M_j - G_j),   G_j = G_j + R_j          there: R_j goes to the parameter's server (``method``)

    The server of the parameter:

        G   = G + mean of all R_j
        X   = (1 - lr weight_decay) X + lr radius LMO(G)
        S   = C'(X - W)                                back: S goes to all replicas (``back``)

    Everyone:  W = W + S.

    LMO(G), the matrix of norm 1 with the least inner product with G, is -U V^T in the spectral norm, by Muon's
    Newton-Schulz, and -sign(G) in that of the largest element. ``matrices`` have the first (`matrices` finds those of
    a model's blocks), embeddings, head and vectors the second. Every replica is the server of a W-th of the elements
    (`servers`), so each direction takes (W - 1) / W messages of all elements, however many replicas there are.
    ``back`` None: W = X, the new weights as they are, in float32, as in the paper's runs with one way compressed.

    ``method``, ``back``: methods whose messages have a fixed size, their own feedback off. Both should be contractive
    (keep a part of what they get): a method whose mean alone is right, and whose error is larger than the input, does
    not converge so. Kept by each replica: M_j and G_j, as large as the parameters each; by servers G and X, a W-th of
    that each; and all of it twice, so that a step that is not finite can be taken back.

    Written from public descriptions of the algorithm: the paper's own text was not at hand, so its settings could not
    be checked. What those leave open, or what differs:

    - M_j, G_j and G begin with zeros, X with W.
    - There is no Nesterov momentum, as in the paper's algorithm; Muon's public code has it.
    - ``radius``: such that an update's root mean square is 0.2, that of AdamW's about (arXiv 2502.16982): 0.2
      sqrt(max(A, B)) for a matrix, 0.2 for an element of the rest. So ``lr`` is AdamW's; a group of ``params`` may
      have its own. The paper has a radius for each layer, to be tuned. Its norm for embeddings is that of Scion's
      public code.
    - Parameters of 8,192 elements and more that have the second norm are compressed in W pieces, one for each server.
    - ``weight_decay`` is decoupled, of X; the paper has none.
    - Replicas train, evaluate and save W, which all of them have.
    - Replicas hold whole matrices: sharded inside a replica they are refused.

    Raises ValueError for methods that do not fit, for names of no matrix, and for shards.
    """

    def __init__(
        self,
        replicas: Replicas,
        matrices: Collection[str],
        params: Params | None = None,
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        method: AnyMethod = METHOD,
        back: AnyMethod | None = None,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum = {momentum!r}: must be at least 0 and less than 1")
        named = {name: p for fragment in replicas.fragments for name, p in fragment.parameters.items()}
        self._matrices, self.momentum = frozenset(matrices), momentum
        check_whole_matrices(self._matrices, named, "EF21-Muon")
        self._there = one_message(chosen("method", method), of_fixed_size=True)
        self._is_exact = chosen("back", back) is None
        self._back = UNCOMPRESSED if self._is_exact else _way_back(back)
        for codec in (self._there, self._back):
            allreduce.check_ranks(codec, replicas.world)
            codec.check_names(list(named))
        self._servers = Servers(replicas.fragments, self._matrices, replicas.world)
        super().__init__(replicas, params, {"lr": lr, "weight_decay": weight_decay})

    def _begin(self, fragment: Fragment, gradients: list[dict[str, Tensor]]) -> UnderWay:
        return self._replicas.begin(fragment, gradients, partial(self._both_ways, fragment))

    def _both_ways(self, fragment: Fragment, rows: Tensor, state: State) -> Generator[Request, Any, list[Tensor]]:
        """The rounds of one replica with its gradients ``[1, n]``; the new weights of every piece, server by server."""
        gradients = {s.name: rows[0, s.start : s.stop] for s in layout(fragment.local(), 1)}
        by_server, parameters = self._servers.of(fragment), fragment.parameters
        there = [
            joined([self._sent(piece, gradients[piece.name], state) for piece in pieces], rows.device)
            for pieces in by_server
        ]
        arrived = yield ExchangeParts(tuple(there))
        mine = by_server[state.rank]
        messages = taken_apart(arrived.buffer, self._there, [piece.numel for piece in mine])
        back = [
            self._served(parameters[piece.name], piece, message, state)
            for piece, message in zip(mine, messages, strict=True)
        ]
        widths = [[piece.numel for piece in pieces] for pieces in by_server]
        lengths = tuple(sum(self._back.layout(n, torch.float32).row_bytes for n in some) for some in widths)
        received = yield GatherParts(joined(back, rows.device), lengths)
        made: list[Tensor] = []
        for pieces, of_server, some in zip(by_server, received, widths, strict=True):
            decoded = taken_apart(of_server.unsqueeze(0), self._back, some)
            made += [self._moved(parameters[p.name], p, one) for p, one in zip(pieces, decoded, strict=True)]
        return made

    def _sent(self, piece: Piece, gradient: Tensor, state: State) -> Encoded:
        """Move this replica's momentum and its estimate of a piece; the message that moved the estimate."""
        own = state.child(piece.key, piece.segments)
        gradient = gradient[piece.start : piece.stop]
        momentum = next_version(own, "momentum", gradient).lerp_(gradient, 1 - self.momentum)
        estimate = next_version(own, "estimate", gradient)
        message = self._there.encode((momentum - estimate).unsqueeze(0), own.child("there", piece.segments))
        estimate += self._there.decode(message)[0]
        own.propose("momentum", momentum)
        own.propose("estimate", estimate)
        return message

    def _served(self, p: nn.Parameter, piece: Piece, arrived: Encoded, state: State) -> Encoded:
        """Move the server's estimate and its weights of a piece, by what ``arrived`` from all; the message back."""
        own = state.child(piece.key, piece.segments).child("server", piece.segments)
        weights = piece.of(p).reshape(-1).float()
        estimate = next_version(own, "estimate", weights)
        estimate += self._there.decode_sum(arrived) / state.world
        own.propose("estimate", estimate)
        exact = next_version(own, "exact", weights, weights) if not self._is_exact else weights.clone()
        group = self._settings(p)
        exact.mul_(1 - group["lr"] * group["weight_decay"])
        exact.add_(self._direction(piece, estimate), alpha=-group["lr"])
        if self._is_exact:
            return self._back.encode(exact.unsqueeze(0), own)
        own.propose("exact", exact)
        return self._back.encode((exact - weights).unsqueeze(0), own.child("back", piece.segments))

    def _direction(self, piece: Piece, estimate: Tensor) -> Tensor:
        """Minus LMO of an estimate, times the radius; NaN where the estimate is not finite (its sign would be 0)."""
        if piece.name in self._matrices:
            return orthogonalised(estimate.view(piece.shape)).reshape(-1).float() * matched(piece.shape)
        return torch.where(estimate.isfinite(), estimate.sign() * RMS, torch.nan)

    def _moved(self, p: nn.Parameter, piece: Piece, message: Encoded) -> Tensor:
        """The new weights of a piece, by what its server sent."""
        sent = self._back.decode(message)[0].float()
        return sent if self._is_exact else piece.of(p).reshape(-1).float() + sent

    def _apply(self, fragment: Fragment, made: list[Tensor]) -> None:
        pieces = [piece for pieces in self._servers.of(fragment) for piece in pieces]
        for piece, weights in zip(pieces, made, strict=True):
            piece.of(fragment.parameters[piece.name]).copy_(weights.view(piece.shape))


def _way_back(back: AnyMethod | None) -> Codec:
    try:
        return one_message(chosen("back", back), of_fixed_size=True)
    except ValueError as error:
        raise ValueError(f"back: {str(error).removeprefix('method: ')}") from None
