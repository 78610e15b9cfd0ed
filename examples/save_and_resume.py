"""A run that stops in its middle, is saved by torch.distributed.checkpoint, and goes on in a new model.

    torchrun --nproc_per_node 2 -m examples.save_and_resume --compress topk        # or stock, or identity

Methods remember something on every rank: what error feedback still owes, what `delta` gathered last. It belongs into
the checkpoint, `{"comm": handle.rank_states()}`, or the resumed run is another one. With it, losses and weights are
those of `examples.fsdp2`, which was never stopped, bit for bit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, choice, finite, methods, report


class Run:
    """Model, optimizer and handle: all that a checkpoint has to hold."""

    def __init__(self, compress: str, device: torch.device) -> None:
        self.device = device
        self.model = Model().to(device)
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.handle = None
        if compress != "stock":
            gradients, parameters = methods(compress)
            self.handle = cc.attach(self.model, reduce_scatter=gradients, all_gather=parameters)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def train(self, first: int, last: int) -> list[float]:
        """Steps ``first`` to ``last`` - 1; their losses."""
        losses = []
        for step in range(first, last):
            loss = self.model(batch(dist.get_rank(), step).to(self.device))
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if finite(norm):
                self.optimizer.step()
            elif self.handle is not None:
                self.handle.rollback()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def save(self, folder: Path) -> None:
        """Write model, optimizer and the methods' states of all ranks into ``folder``; collective."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer} | self._comm(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Put back what `save` wrote, on as many ranks as wrote it; collective."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer} | self._comm(), checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)

    def _comm(self) -> dict[str, object]:
        return {} if self.handle is None else {"comm": self.handle.rank_states()}


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    device = start()
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    folder = Path(str(shared[0])) / "step-10"

    begun = Run(compress, device)
    losses = begun.train(0, STEPS // 2)
    begun.save(folder)
    del begun

    resumed = Run(compress, device)
    resumed.load(folder)
    losses += resumed.train(STEPS // 2, STEPS)

    report(losses, resumed.model, None if resumed.handle is None else resumed.handle.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
