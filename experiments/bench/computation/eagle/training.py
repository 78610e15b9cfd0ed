"""A draft trained in this process, as ours is or with whole matrices: tokens a second, memory, and the first loss."""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from experiments.bench.computation.eagle.setting import OURS, Measurement, Setting
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel, supervised_rows
from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.training.optim import build_optimizer, take_step


class FullMask:
    """Attention of the training-time test as one masked attention over the keys of all steps so far."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to the keys of all steps so far, as `fsdp_lab.eagle.draft.network.Attend` does."""
        groups, length = query.shape[1] // key.shape[1], query.shape[2]
        self._keys.append(key.repeat_interleave(groups, 1))
        self._values.append(value.repeat_interleave(groups, 1))
        causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        own = torch.eye(length, dtype=torch.bool, device=query.device)
        mask = torch.cat([causal] + [own] * (len(self._keys) - 1), -1)
        keys, values = torch.cat(self._keys, 2), torch.cat(self._values, 2)
        attended: Tensor = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return attended


def plain_loss(model: EagleTrainingModel, tokens: Tensor, mask: Tensor) -> Tensor:
    """The loss of `EagleTrainingModel.forward` with every logit computed at once and in float32."""
    target, draft, length = model.target, model.draft, tokens.shape[1]
    rows = supervised_rows(mask, model.steps)
    seen = target(tokens)
    said = target.logits(seen.last).float()  # [B, T, V]
    p = said[..., draft.used].softmax(-1)  # [B, T, D]
    known = draft.t2d[said.argmax(-1)]
    embedded, hidden = target.embed(tokens), draft.fuse(seen.features)
    attention, positions = FullMask(), torch.arange(length, device=tokens.device)
    total = torch.zeros((), device=tokens.device)
    for k in range(model.steps):
        shift = 1 + k
        moved = F.pad(embedded[:, shift:], (0, 0, 0, shift))
        hidden = draft.midlayer(moved, hidden, draft.rotate(hidden, positions + k), attention.attend)
        log_q = draft.logits(hidden).float().log_softmax(-1)  # [B, T, D]
        wanted = F.pad(p[:, shift:], (0, 0, 0, shift))
        counted = rows[k] & F.pad(known[:, shift:], (0, shift), value=False)
        loss = -((wanted * log_q).sum(-1) * counted).sum() / rows[k].sum().clamp(min=1)
        total = total + model.decay**k * loss
    return total


def measure(how: str, setting: Setting) -> Measurement:
    """Measure one of the two variants in this process."""
    torch.set_num_threads(setting.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _model(setting).to(device)
    optimizer, schedule = build_optimizer(model.draft, OptimConfig(learning_rate=1e-4, warmup_steps=1), setting.steps)
    generator = torch.Generator().manual_seed(0)
    shape = (setting.batch, setting.length)
    tokens = torch.randint(setting.vocabulary, shape, generator=generator).to(device)
    mask = (torch.arange(setting.length, device=device) >= setting.length // 4).expand(shape)  # a quarter is asked
    before, losses, times = _memory(device), [], []
    for _ in range(1 + setting.steps):
        start = time.perf_counter()
        loss = model(tokens, mask).loss if how == OURS else plain_loss(model, tokens, mask)
        loss.backward()
        losses.append(float(loss.detach()))
        take_step(model.draft, optimizer, schedule, 0.5)
        times.append(time.perf_counter() - start)  # reading the loss and the norm waits for the device
    after = _peak(device)
    return Measurement(tokens.numel() / statistics.median(times[1:]), after, after - before, losses[0])


def _model(setting: Setting) -> EagleTrainingModel:
    torch.manual_seed(0)
    heads = max(1, setting.hidden // 64)
    config = LlamaConfig(
        vocab_size=setting.vocabulary,
        hidden_size=setting.hidden,
        intermediate_size=8 * setting.hidden // 3,
        num_hidden_layers=setting.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=setting.length,
        tie_word_embeddings=True,
    )
    target = Target(LlamaForCausalLM(config))
    known = torch.randperm(setting.vocabulary)[: min(setting.draft_vocabulary, setting.vocabulary)]
    return EagleTrainingModel(
        target, Draft.fresh(target, Vocabulary.of(known, setting.vocabulary), 0), setting.steps_ahead
    )


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.memory_allocated() / 1e9
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
