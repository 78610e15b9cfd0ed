"""Which draft a training keeps: the last one, or the one that decoded fastest among those measured.

A draft can get worse at decoding while its loss still falls. So drafts are compared by the acceptance length tau: how
many tokens a pass of the target gives when held-out questions are answered greedily.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from fsdp_lab.eagle.data.chats import Chats
from fsdp_lab.eagle.data.prompts import first_prompts
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.eagle.draft.folder import save_draft, verifier_of
from fsdp_lab.eagle.draft.formats import WEIGHTS
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.training.model import DraftModel
from fsdp_lab.run.run import Run
from fsdp_lab.run.steps.loop import Loop
from fsdp_lab.training.communication import Communication


class Measurement(NamedTuple):
    """The acceptance length ``tau`` of the draft after ``step`` steps."""

    tau: float
    step: int


class Choice:
    """Measures the draft at intervals and keeps the best one in the run's folder; without ``eval_data`` the last one.

    The folder itself says which draft it holds, so a resumed run knows it.
    """

    def __init__(self, config: EagleConfig, model: DraftModel, data: Chats, run: Run) -> None:
        self._config, self._model, self._data, self._run = config, model, data, run
        self._prompts = self._read_prompts()
        self._best = run.ranks.broadcast(self._left_by_earlier_process())

    def when_due(self, step: int, comm: Communication, loop: Loop) -> None:
        """Measures the draft if an evaluation is due after ``step``."""
        if self._prompts and loop.evaluations.is_due(step):
            self._measure(step, comm, loop)

    def at_the_end(self, step: int, comm: Communication, loop: Loop) -> None:
        """Measures the draft at the end of the training."""
        if self._prompts:
            self._measure(step, comm, loop)

    def save_last(self) -> None:
        """Saves the draft as it is now, if none was measured. All ranks call this together."""
        if not self._prompts:
            self._save({})

    def row(self) -> dict[str, Any]:
        """The fields of a results row, which are null where nothing was measured."""
        tau, step = self._best or (None, None)
        return {"tau": tau, "tau_step": step, "tau_prompts": len(self._prompts) or None}

    def _measure(self, step: int, comm: Communication, loop: Loop) -> None:
        run = self._run
        with comm.exact(), loop.evaluations.under_way():
            now = Measurement(self._tau(), step)
            self._model.reshard()  # the next training step sends what every other one sends
            best = now if self._best is None or now.tau > self._best.tau else self._best
            if best is now:
                self._save({"run_name": run.name, "tau": repr(now.tau), "step": str(step)})
        loop.evaluations.show_number(step, "tau", now.tau)
        self._best = best
        if best is not now:
            run.say(f"the draft of step {best.step} stays the best: tau {best.tau:.4g}")

    def _tau(self) -> float:
        """Tau over all prompts. Each rank answers some of them; where ranks share the target, all answer all."""
        ranks, eagle, prompts = self._run.ranks, self._config.eagle, self._prompts
        rank, world = (0, 1) if eagle.shard_target else (ranks.rank, ranks.world)
        end = self._data.tokenizer.eos_token_id
        counts = torch.zeros(2, dtype=torch.float64)  # tokens and passes
        for first in range(0, len(prompts), world):
            i = first + rank  # a rank with no prompt left answers one again: FSDP2 gathers the draft from all
            answer = self._model.module.answer(
                prompts[i % len(prompts)], eagle.eval_max_new_tokens, eagle.num_drafts, [] if end is None else [end]
            )
            if i < len(prompts):
                counts += torch.tensor([len(answer.tokens) - 1, answer.passes])
            self._run.after_validation_batch()
        tokens, passes = ranks.sum(counts.to(ranks.device)).tolist()
        return float(tokens / passes) if passes else 1.0

    def _read_prompts(self) -> list[list[int]]:
        eagle = self._config.eagle
        if eagle.eval_data is None:
            return []
        longest = self._model.module.target.max_positions - eagle.eval_max_new_tokens
        prompts = first_prompts(Path(eagle.eval_data), self._data.tokenizer, eagle.eval_prompts, longest)
        if not prompts:
            raise ValueError(f"eval_data: no question of {eagle.eval_data} leaves room for an answer")
        return prompts

    def _left_by_earlier_process(self) -> Measurement | None:
        """The measurement of the draft that an earlier process of this run has saved; None where there is none."""
        if not self._run.is_resumed:
            return None
        try:
            with safe_open(self._run.paths.model / WEIGHTS, "pt") as file:
                notes = file.metadata() or {}
            measurement = Measurement(float(notes["tau"]), int(notes["step"]))
            return measurement if notes.get("run_name") == self._run.name else None
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
        self._run.ranks.broadcast(None)  # no rank continues before the folder is complete


def _whole(tensor: Tensor) -> Tensor:
    """The unsharded tensor on the CPU. All ranks call this together."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
