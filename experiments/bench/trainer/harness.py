"""What the trainer costs: its tokens/s against the same model in a bare PyTorch loop.

    fsdp-lab bench harness [--steps 40] [--repeats 3]

Both run two ranks on this machine, the same preset, batch, optimizer and stock FSDP2 (`none`); the bare loop
has no logging, checks, clocks or rows. They alternate (A B A B), and each repeat gives one ratio; quote the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.runs.training import torchrun, train
from fsdp_lab.settings.flag_values import whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings

RANKS = 2


def bare(steps: int, warmup: int = 5) -> float:
    """Tokens/s of all ranks in a plain PyTorch loop. One rank of it; run under torchrun."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.fsdp import fully_shard
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel

    from fsdp_lab.settings.models.presets import PRESETS

    preset = PRESETS["gpt2-nano"]
    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**preset.shape, **dropout))
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    shape = (preset.batch_size, preset.max_length)
    batches = [torch.randint(50257, shape) for _ in range(steps)]
    started = 0.0
    for step, tokens in enumerate(batches):
        if step == warmup:
            dist.barrier()
            started = time.perf_counter()
        logits = model(tokens, use_cache=False).logits.flatten(0, 1)
        loss = F.cross_entropy(logits, F.pad(tokens[:, 1:], (0, 1), value=-100).flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    tokens_seen = (steps - warmup) * shape[0] * shape[1] * dist.get_world_size()
    return float(tokens_seen / (time.perf_counter() - started))


def harness(steps: int) -> float:
    """Tokens/s by the results row that the trainer writes for `none`."""
    with tempfile.TemporaryDirectory() as folder:
        row = Path(folder) / "row.jsonl"
        flags = ["--model", "gpt2-nano", "--comm_compress", "none", "--max_steps", str(steps)]
        if code := train(flags, RANKS, row):
            sys.exit(code)
        return float(json.loads(row.read_text())["tokens_per_s"])


def main() -> None:
    """Run both in turn, then print every ratio and the median."""
    parser = program("experiments.bench.trainer.harness", __doc__)
    parser.add_argument("--steps", type=whole(1), default=40)
    parser.add_argument("--repeats", type=whole(1), default=3)
    parser.add_argument("--as-bare-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_bare_rank:
        speed = bare(arguments.steps)
        if os.environ["RANK"] == "0":
            print(f"BARE {speed}", flush=True)
        os._exit(0)
    ratios = []
    for repeat in range(arguments.repeats):
        as_rank = ["--as-bare-rank", "--steps", str(arguments.steps)]
        done = torchrun("experiments.bench.trainer.harness", as_rank, RANKS, stdout=subprocess.PIPE)
        if done.returncode:
            sys.exit(done.returncode)
        plain = float(next(line for line in done.stdout.splitlines() if line.startswith("BARE")).split()[1])
        ours = harness(arguments.steps)
        ratios.append(ours / plain)
        print(
            f"repeat {repeat + 1}: bare {plain:,.0f} tokens/s, trainer {ours:,.0f}, ratio {ratios[-1]:.3f}", flush=True
        )
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    with unix_endings():
        main()
