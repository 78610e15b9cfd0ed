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
# # Anatomy of a run
#
# What is sent, what of it arrives, and how training goes.

# %%
import sys
from pathlib import Path

ROOT = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "analysis").is_dir())
sys.path.insert(0, str(ROOT))
# %matplotlib inline
FILES = [ROOT / "results/reference/fresh_weights/all_methods.jsonl"]

# %%
from analysis.figures import comm_share, loss_curves, system, traffic
from analysis.figures.drawing.style import Style
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.curves.of_arms import training_curves
from analysis.rows.reading import read
from analysis.statistics.names import named

comparison = named(comparisons(read(FILES).rows))[0]

# %% [markdown]
# Where compression sits in FSDP2's step:

# %%
system.draw(Style())

# %%
traffic.draw(traffic.data(comparison), Style())

# %%
comm_share.draw(comm_share.data(comparison), Style())

# %% [markdown]
# Error and cosine of the reduced gradient against the exact mean, as the rows have them (means over sampled steps):

# %%
for runs in comparison.arms:
    row = next(iter(runs.runs.values()))
    if row.get("grad_rel_error") is not None:
        print(f"{runs.arm.label:45s}{row['grad_rel_error']:10.3g}{row['grad_cos_sim'] or 0:10.4f}")

# %% [markdown]
# Training loss, if the rows name curves:

# %%
figure: object = None
try:
    training = training_curves(comparison, "train_loss", smooth=5)
    figure = loss_curves.draw(training.curves, Style(), smooth=5)
except ValueError as error:
    print(error)
figure
