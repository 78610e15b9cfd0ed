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
# # Speed
#
# Where a step's time goes, on which links a method pays, and how soon a perplexity is reached. Times measured on one
# machine's loopback say little about a network: for that, the model of a step predicts from a calibration.

# %%
import sys
from pathlib import Path

ROOT = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "analysis").is_dir())
sys.path.insert(0, str(ROOT))
# %matplotlib inline
FILES = [ROOT / "results/reference/fresh_weights/all_methods.jsonl"]
CALIBRATION, MATRIX = (ROOT / "results/reference/links" / name for name in ("calibration.json", "link_matrix.jsonl"))

# %%
from analysis.checks.fairness import findings_of, verdict
from analysis.figures import bandwidth, breakeven, step_time, time_to_quality
from analysis.figures.drawing.style import Style
from analysis.predict.calibration import Calibration, read_json
from analysis.predict.predictor import Predictor
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import read
from analysis.statistics.names import named
from analysis.statistics.time_to_quality import times

rows = read(FILES).rows
comparison = named(comparisons(rows))[0]
foot = verdict(findings_of(comparison, rows), comparison, ("times",))

# %%
step_time.draw(step_time.data(comparison), Style(), foot)

# %% [markdown]
# Break-even from the rows themselves: below this bandwidth the bytes saved take longer to send than the codec takes.

# %%
breakeven.draw(breakeven.of_comparison(comparison), Style(), foot)

# %% [markdown]
# The same machine's model of a step: lines are predictions, points are cells of a link matrix.

# %%
predictor = Predictor(Calibration.load(CALIBRATION), "blocks", 2)
bandwidth.draw(bandwidth.of_calibration(predictor, "blocks", read_json(MATRIX)), Style(), "blocks, 2 ranks")

# %% [markdown]
# Time to quality takes curves with evaluations (`--eval_steps 20`); without them this says so.

# %%
predictor = Predictor(Calibration.load(CALIBRATION), "default", comparison.setting.world_size)
figure: object = None
try:
    reached = times(comparison, rows, [1e8, 1e9, 1e10], predictor=predictor)
    figure = time_to_quality.draw(reached, Style(), foot=foot)
except ValueError as error:
    print(error)
figure
