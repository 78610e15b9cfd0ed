"""What chunked losses and merged attention save in the training of a draft, against the same in whole matrices.

    python -m experiments.bench.eagle                                        # lengths x vocabularies, some minutes each
    python -m experiments.bench.eagle --lengths 128 --vocabularies 2048 --hidden 64 --steps 2     # to see that it works
    python -m experiments.bench.eagle --out bench/                           # bench/eagle.json and bench/eagle.md too

Both train the same draft of the same random Llama on the same tokens with the same optimizer, each in a process of its
own, one rank, ours first and last in turn. The straightforward one is written here: the target's logits at all
positions, the draft's at all positions and steps, and attention under one mask over all keys of all steps. The two
losses of the first step must agree. Columns: tokens of a sequence, the target's vocabulary, training tokens/s, and the
largest memory of the process (CPU: resident set; CUDA: allocated by tensors), also above what it had before the first
step: weights and libraries.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel, supervised_rows
from fsdp_lab.files.atomic import make_folder
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.settings.user_errors import unix_pipes, user_errors
from fsdp_lab.training.optim import build_optimizer, take_step

OURS, PLAIN = "ours", "plain"
_KILLED = -9  # by the kernel, where there was no memory left


@dataclass(frozen=True)
class Setting:
    """The setting of one row of the table."""

    length: int
    vocabulary: int
    draft_vocabulary: int
    hidden: int
    layers: int
    batch: int
    steps_ahead: int
    steps: int
    threads: int


@dataclass(frozen=True)
class Measurement:
    """What one run took. ``first_loss`` is that of the first step; GB are 1e9 bytes."""

    tokens_per_s: float
    peak_gb: float
    above_start_gb: float
    first_loss: float


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


def in_own_process(how: str, setting: Setting) -> Measurement | None:
    """The measurement from a process of its own; None where there is not enough memory. RuntimeError if it fails
    otherwise."""
    command = [sys.executable, "-m", "experiments.bench.eagle", "--child", how, json.dumps(asdict(setting))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _KILLED or "OutOfMemoryError" in done.stderr or "can't allocate memory" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(f"{how}, {setting}: exit code {done.returncode}\n{done.stderr}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def compare(setting: Setting, repeats: int) -> dict[str, Any]:
    """A row of the table, of medians over repeats; ``plain`` is null where it does not fit into memory."""
    by_variant: dict[str, list[Measurement]] = {OURS: [], PLAIN: []}
    for repeat in range(repeats):
        for how in (OURS, PLAIN) if repeat % 2 == 0 else (PLAIN, OURS):
            if (measured := in_own_process(how, setting)) is not None:
                by_variant[how].append(measured)
    if not by_variant[OURS]:
        raise RuntimeError(f"ours does not fit into memory: {setting}")
    ours, plain = (_median(by_variant[how]) for how in (OURS, PLAIN))
    if (
        plain is not None
        and ours is not None
        and not math.isclose(ours["first_loss"], plain["first_loss"], rel_tol=1e-3)
    ):
        raise RuntimeError(f"not the same loss: {ours['first_loss']} and {plain['first_loss']}, {setting}")
    return {**asdict(setting), OURS: ours, PLAIN: plain}


def _median(measured: Sequence[Measurement]) -> dict[str, float] | None:
    if not measured:
        return None
    rows = [asdict(m) for m in measured]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


HEAD = (
    "| tokens | vocabulary | ours, tokens/s | plain, tokens/s | speed-up | ours, GB (above start) "
    "| plain, GB (above start) | share of memory (above start) |\n|" + "---:|" * 8
)


def line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    ours, plain = row[OURS], row[PLAIN]
    speed, memory, faster, share = "", "does not fit", "", ""
    if plain is not None:
        speed, memory = f"{plain['tokens_per_s']:,.0f}", _gb(plain)
        faster = f"{ours['tokens_per_s'] / plain['tokens_per_s']:.2f}x"
        above = ours["above_start_gb"] / plain["above_start_gb"] if plain["above_start_gb"] else math.nan
        share = f"{ours['peak_gb'] / plain['peak_gb']:.2f} ({above:.2f})"
    cells = [f"{row['length']:,}", f"{row['vocabulary']:,}", f"{ours['tokens_per_s']:,.0f}", speed, faster]
    return "| " + " | ".join([*cells, _gb(ours), memory, share]) + " |"


def _gb(measured: dict[str, float]) -> str:
    return f"{measured['peak_gb']:.2f} ({measured['above_start_gb']:.2f})"


def main(argv: list[str]) -> int:
    """Measure every setting and print a line for each; returns the exit code."""
    if argv[:1] == ["--child"]:
        print(json.dumps(asdict(measure(argv[1], Setting(**json.loads(argv[2]))))))
        return 0
    parser = program("experiments.bench.eagle", __doc__)
    parser.add_argument("--lengths", type=whole(16), nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--vocabularies", type=whole(1), nargs="+", default=[16384, 49152, 131072])
    parser.add_argument("--draft_vocabulary", type=whole(1), default=16384, help="at most the target's")
    parser.add_argument("--hidden", type=whole(2), default=576, help="of the target, SmolLM2-135M's by default")
    parser.add_argument(
        "--layers", type=whole(3), default=6, help="of the target: fewer than a real one's, which only waits"
    )
    parser.add_argument("--batch", type=whole(1), default=1)
    parser.add_argument("--steps_ahead", type=whole(1), default=7)
    parser.add_argument("--steps", type=whole(1), default=5, help="timed steps, after one that is not")
    parser.add_argument("--repeats", type=whole(1), default=1)
    parser.add_argument("--threads", type=whole(1), default=torch.get_num_threads())
    parser.add_argument("--out", type=new_folder, help="folder for eagle.json and eagle.md")
    options = parser.parse_args(argv)
    with user_errors("experiments.bench.eagle"):
        if (
            options.layers < 3
            or min(options.lengths) < 16
            or options.hidden % max(1, options.hidden // 64)
            or options.hidden % 2
        ):
            raise ValueError("wants 3 layers or more, 16 tokens or more, and heads of one even size (a multiple of 64)")
        if options.out is not None:
            make_folder(options.out, "out")
    print(HEAD)
    rows = []
    for length, vocabulary in itertools.product(options.lengths, options.vocabularies):
        sizes = (options.draft_vocabulary, options.hidden, options.layers, options.batch, options.steps_ahead)
        rows.append(compare(Setting(length, vocabulary, *sizes, options.steps, options.threads), options.repeats))
        print(line(rows[-1]), flush=True)
        if options.out is not None:
            (options.out / "eagle.json").write_text(json.dumps(rows, indent=1) + "\n")
            (options.out / "eagle.md").write_text("\n".join([HEAD, *map(line, rows)]) + "\n")
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
