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
# # Quality against compression
#
# Which arm saves how much, and what does it cost in perplexity? Change `FILES` to your own rows.
# `python -m analysis.report` draws the same figures into a page.

# %%
import sys
from pathlib import Path

ROOT = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "analysis").is_dir())
sys.path.insert(0, str(ROOT))
# %matplotlib inline
FILES = [ROOT / "results/reference/fresh_weights/all_methods.jsonl"]

# %%
from analysis.checks.fairness import findings_of, verdict
from analysis.figures import pareto
from analysis.figures.drawing.style import Style
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import read
from analysis.statistics.names import named
from analysis.statistics.pareto import points
from analysis.tables.comparison import answer_table, comparison_table

rows = read(FILES).rows
comparison = named(comparisons(rows))[0]
findings = findings_of(comparison, rows)
print(verdict(findings, comparison))

# %% [markdown]
# What speaks against the comparison, before anything is read off it:

# %%
for finding in findings:
    print(f"{finding.severity}: {finding.what}; {finding.advice}")

# %%
print(comparison_table(comparison, findings).text())

# %%
print(answer_table(comparison).text())

# %% [markdown]
# Bars are 95 % intervals over seeds of the change against the baseline, seed by seed. The shaded field is the bar: half
# the bytes or fewer at no more than 1 % worse perplexity.

# %%
pareto.draw(points(comparison), Style(), foot=verdict(findings, comparison, ("quality", "bytes")))
