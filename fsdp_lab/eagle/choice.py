"""The draft that a training leaves: the last one, or of those measured the one that decodes fastest.

A draft gets worse at decoding while its loss still falls, so what counts is the acceptance length tau: tokens a pass of
the target, answering held-out questions greedily.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from fsdp_lab.eagle.data.chats import Chats
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.eagle.draft.export import WEIGHTS, save_draft, verifier_of
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.evaluate import first_prompts
from fsdp_lab.eagle.training.model import DraftModel
from fsdp_lab.run.loop import Loop
from fsdp_lab.run.run import Run
from fsdp_lab.training.communication import Communication


class Measured(NamedTuple):
    """``tau`` after so many steps."""

    tau: float
    step: int


class Choice:
    """Measures a draft now and then, and keeps the best in the run's folder; without ``eval_data`` the last.

    The folder itself says which it holds, so a run that is resumed knows.
    """

    def __init__(self, config: EagleConfig, model: DraftModel, data: Chats, run: Run) -> None:
        self._config, self._model, self._data, self._run = config, model, data, run
        self._prompts = self._read_prompts()
        self._best = run.ranks.broadcast(self._found())

    def when_due(self, step: int, comm: Communication, loop: Loop) -> None:
        """Measure, if this is the time for it."""
        if self._prompts and loop.evaluations.is_due(step):
            self._measure(step, comm, loop)

    def at_the_end(self, step: int, comm: Communication, loop: Loop) -> None:
        """Measure what the training has come to."""
        if self._prompts:
            self._measure(step, comm, loop)

    def save_last(self) -> None:
        """Save the draft as it is now, where nothing is measured; collective."""
        if not self._prompts:
            self._save({})

    def row(self) -> dict[str, Any]:
        """The fields of a results row; null where nothing was measured."""
        tau, step = self._best or (None, None)
        return {"tau": tau, "tau_step": step, "tau_prompts": len(self._prompts) or None}

    def _measure(self, step: int, comm: Communication, loop: Loop) -> None:
        run = self._run
        with comm.exact(), loop.evaluations.under_way():
            now = Measured(self._tau(), step)
            self._model.reshard()  # the next training step sends what every other one sends
            best = now if self._best is None or now.tau > self._best.tau else self._best
            if best is now:
                self._save({"run_name": run.name, "tau": repr(now.tau), "step": str(step)})
        loop.evaluations.show_number(step, "tau", now.tau)
        self._best = best
        if best is not now:
            run.say(f"the draft of step {best.step} stays the best: tau {best.tau:.4g}")

    def _tau(self) -> float:
        """Over all prompts; each rank answers a share of them, or all together where they share the target."""
        ranks, eagle, prompts = self._run.ranks, self._config.eagle, self._prompts
        rank, world = (0, 1) if eagle.shard_target else (ranks.rank, ranks.world)
        end = self._data.tokenizer.eos_token_id
        found = torch.zeros(2, dtype=torch.float64)
        for first in range(0, len(prompts), world):
            i = first + rank  # who has no prompt left answers one again: FSDP2 gathers the draft from all
            got = self._model.module.answer(
                prompts[i % len(prompts)], eagle.eval_max_new_tokens, eagle.num_drafts, [] if end is None else [end]
            )
            if i < len(prompts):
                found += torch.tensor([len(got.tokens) - 1, got.passes])
            self._run.after_validation_batch()
        tokens, passes = ranks.sum(found.to(ranks.device)).tolist()
        return float(tokens / passes) if passes else 1.0

    def _read_prompts(self) -> list[list[int]]:
        eagle = self._config.eagle
        if eagle.eval_data is None:
            return []
        room = self._model.module.target.max_positions - eagle.eval_max_new_tokens
        found = first_prompts(Path(eagle.eval_data), self._data.tokenizer, eagle.eval_prompts, room)
        if not found:
            raise ValueError(f"eval_data: no question of {eagle.eval_data} leaves room for an answer")
        return found

    def _found(self) -> Measured | None:
        """What an earlier process of this run has left."""
        if not self._run.is_resumed:
            return None
        try:
            with safe_open(self._run.paths.model / WEIGHTS, "pt") as file:
                said = file.metadata() or {}
            return Measured(float(said["tau"]), int(said["step"])) if said.get("run_name") == self._run.name else None
        except (OSError, SafetensorError, KeyError, ValueError):
            return None

    def _save(self, notes: dict[str, str]) -> None:
        if not self._config.run.save_model:
            return
        self._model.reshard()
        draft = self._model.module.draft
        weights = {name: _whole(tensor) for name, tensor in draft.state_dict().items()}
        with self._run.saving_model():
            if self._run.ranks.is_first:
                whole = Draft(draft.shape, Vocabulary(weights["d2t"], weights["t2d"]))
                whole.load_state_dict(weights)
                save_draft(whole, self._run.paths.model, verifier_of(str(self._config.eagle.target_dir)), notes=notes)
        self._run.ranks.broadcast(None)  # no rank goes on before it is there


def _whole(tensor: Tensor) -> Tensor:
    """All shards, on the CPU; collective."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
