# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The library on two ranks, in Colab or anywhere
#
# Two processes on this machine's CPU train with FSDP2 and send compressed gradients and parameters to each other over
# gloo. A GPU is neither needed nor used. The notebook takes about a minute; in Colab, set `REPOSITORY` first.

# %%
# %matplotlib inline
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = ""  # the address that one clones this project from, https://...; not needed in a checkout

checkout = next((folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "comm_compress").is_dir()), None)
if checkout is not None:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
elif importlib.util.find_spec("comm_compress") is None:
    if not REPOSITORY:
        raise ValueError("comm_compress is not installed: set REPOSITORY, above, to the address of its repository")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", f"git+{REPOSITORY}"], check=True)

# %% [markdown]
# A notebook is one process and two ranks are two, so programs are text here, and `torchrun` starts them.


# %%
def two_ranks(program: str, *words: str) -> str:
    """Run the text of a program on two ranks without a GPU, and return what it printed."""
    settings = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(program)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        done = subprocess.run([*torchrun, str(file), *words], env=settings, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


# %% [markdown]
# ## The program of the front page
#
# A trainer of its own with one new line, and what each rank sent in its 20 steps.

# %%
FRONT_PAGE = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import comm_compress as cc

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
fully_shard(model)
handle = cc.attach(model, reduce_scatter="topk ratio=0.01", all_gather="int8")  # the one new line
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(20):
    x = torch.randn(32, 64)
    (model(x) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(handle.ledger.summary())
"""
print(two_ranks(FRONT_PAGE))

# %% [markdown]
# ## Three methods
#
# The same small regression three times: uncompressed (`identity`, so that its bytes are counted, too), 8-bit
# integers, and 1 % of the gradients with 8-bit parameters. Three seeds each; a seed gives every method the same
# weights and data.

# %%
COMPARISON = """
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import comm_compress as cc

STEPS = 60


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.GELU(), torch.nn.Linear(256, 32))


def trained(gradients, parameters, seed):
    teacher, model = network(100 + seed), network(seed)
    fully_shard(model)
    handle = cc.attach(model, reduce_scatter=gradients, all_gather=parameters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(10 * seed + dist.get_rank())  # each rank has data of its own
    for _ in range(STEPS):
        x = torch.randn(64, 32, generator=data)
        torch.nn.functional.mse_loss(model(x), teacher(x).detach()).backward()
        optimizer.step()
        optimizer.zero_grad()
    sent = handle.ledger.totals().sent_bytes / STEPS
    held_out = torch.randn(1024, 32, generator=torch.Generator().manual_seed(7))
    with torch.no_grad(), handle.exact():
        loss = torch.nn.functional.mse_loss(model(held_out), teacher(held_out)).item()
    return {"seed": seed, "bytes_a_step": sent, "loss": loss}


dist.init_process_group("gloo")
for arm in sys.argv[1:]:
    gradients, parameters = arm.split(" + ")
    for seed in (1, 2, 3):
        row = {"arm": arm, **trained(gradients, parameters, seed)}
        if dist.get_rank() == 0:
            print(json.dumps(row))
dist.destroy_process_group()
"""
ARMS = ["identity + identity", "int8 + int8", "topk ratio=0.01 + int8"]
rows = [json.loads(line) for line in two_ranks(COMPARISON, *ARMS).splitlines() if line.startswith("{")]
for row in rows:
    print(f"{row['arm']:24} seed {row['seed']}  {row['bytes_a_step'] / 1e3:7.1f} kB a step  loss {row['loss']:.5f}")

# %% [markdown]
# To the left is less traffic, down is better. Three seeds of a network this small show how a comparison is made, and
# say nothing of a language model. For one, `fsdp-lab sweep` runs, and `fsdp-lab report` draws
# (`docs/tutorials/compare-methods.md`).

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6, 3.6))
for arm in ARMS:
    own = [row for row in rows if row["arm"] == arm]
    axes.plot([row["bytes_a_step"] / 1e3 for row in own], [row["loss"] for row in own], "o", label=arm, alpha=0.7)
axes.set(xlabel="kB that a rank sends a step", ylabel="loss on held-out data")
axes.set_xlim(left=0)
axes.set_ylim(bottom=0)
axes.legend(title="gradients + parameters")
axes.grid(alpha=0.3)
figure.tight_layout()
