"""Sweeps: a recipe becomes cells, cells and rows become a plan, and a runner carries the plan out.

recipe.py    the YAML file, checked key by key
arms.py      how communication is done, one arm for each combination that the recipe names
trainers.py  what can be trained: language models, and drafts of them
cells.py     one training run each, in the order in which they run
plan.py      what is finished, what failed, what is to run
estimate.py  how long that takes, from rows that are there
runner.py    cells as processes: start, wait, try again, record, stop
progress.py  what the user sees meanwhile, and at the end
slurm.py     the same cells as an array job
"""
