"""A sweep as Slurm array jobs: one cell a job, any number of nodes, the same command line as without Slurm."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.sweeps.plan import Plan
from experiments.sweeps.recipe.cells import Cell
from fsdp_lab.settings.reading.strict import dump_yaml

_SUBMIT = """\
#!/usr/bin/env bash
# Submits the sweep {name}: {count} cells, an array job for each number of ranks. bash {here}/submit.sh
# Submitting again is safe: finished cells end at once, cells that were cut short run again.
set -euo pipefail

# Resources, to be set for your cluster: here, or in the environment of this script
PARTITION=${{PARTITION-}}                 # empty: the cluster's default
ACCOUNT=${{ACCOUNT-}}                     # empty: your default
TIME=${{TIME-04:00:00}}                   # for one cell; one that needs longer goes on from its checkpoint
NOTICE=${{NOTICE-120}}                    # seconds before TIME is up, in which a cell saves its checkpoint
RANKS_PER_NODE=${{RANKS_PER_NODE-8}}      # GPUs of a node, or CPU ranks
GPUS=${{GPUS-yes}}                        # no: ranks without GPUs
CPUS_PER_RANK=${{CPUS_PER_RANK-4}}
AT_ONCE=${{AT_ONCE-8}}                    # cells of an array that may run at the same time
export PYTHON={python}
export CHECKOUT={checkout}
export SWEEP={folder}
export OUT={out}

submit() {{ # RANKS CELLS
    local ranks=$1 cells=$2 per_node=$RANKS_PER_NODE
    [ "$ranks" -ge "$per_node" ] || per_node=$ranks
    if [ $((ranks % per_node)) -ne 0 ]; then
        echo "$ranks ranks cannot be spread over nodes of $per_node; set RANKS_PER_NODE" >&2
        return 2
    fi
    local options=(--job-name={name} --array="$cells%$AT_ONCE" --time="$TIME" --output="$SWEEP/logs/%A_%a.txt")
    options+=(--signal="B:TERM@$NOTICE")
    options+=(--nodes=$((ranks / per_node)) --ntasks-per-node=1 --cpus-per-task=$((per_node * CPUS_PER_RANK)))
    [ "$GPUS" = no ] || options+=(--gpus-per-node="$per_node")
    [ -z "$PARTITION" ] || options+=(--partition="$PARTITION")
    [ -z "$ACCOUNT" ] || options+=(--account="$ACCOUNT")
    sbatch "${{options[@]}}" "$SWEEP/cell.sbatch"
}}

mkdir -p "$SWEEP/logs"
{calls}
"""

_CELL = """\
#!/usr/bin/env bash
#SBATCH --requeue
#SBATCH --open-mode=append
# One cell of the sweep {name}; submitted by submit.sh. Told to stop, before its time is up or because another job
# needs the node, it saves a checkpoint, records itself as preempted, and goes on from there when it is started again.
set -uo pipefail
cd "$CHECKOUT" || exit
# From here on a stop signal is the sweep's; one that comes before it runs waits for it.
sweep="" early="" told=""
pass_on() {{
    told=yes
    if [ -n "$sweep" ]; then kill -s TERM "$sweep" 2>/dev/null; else early=yes; fi
}}
trap pass_on TERM
"$PYTHON" -m experiments.sweep "$SWEEP/recipe.yaml" --only "$SLURM_ARRAY_TASK_ID" --out "$OUT"{flags} &
sweep=$!
if [ -n "$early" ]; then
    kill -s TERM "$sweep" 2>/dev/null
    told=""
fi
while :; do # a trapped signal ends wait early: wait again until the sweep has ended
    wait "$sweep"
    status=$?
    [ -n "$told" ] && [ "$status" -gt 128 ] || break
    told=""
done
# Slurm itself starts a job again that it preempted, but not one whose time is up. One that was cancelled stays so.
if [ "$status" = 143 ]; then
    element=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID of one of them stands for the whole array
    [ "$(squeue --noheader --jobs="$element" --format=%T)" != RUNNING ] || scontrol requeue "$element"
fi
exit "$status"
"""


def write(plan: Plan, out: Path, folder: Path) -> Path:
    """Write submit.sh, cell.sbatch and the recipe as it is now to ``folder``; returns submit.sh.

    ValueError for a recipe with emulated links."""
    if any(cell.link is not None for cell in plan.cells):
        raise ValueError("--slurm: emulated links need root on one machine; leave links out of this recipe")
    folder.mkdir(parents=True, exist_ok=True)
    calls = [f"submit {ranks} {_ranges(numbers)}" for ranks, numbers in _by_processes(plan.to_run()).items()]
    (folder / "recipe.yaml").write_text(dump_yaml(plan.recipe.source))
    (folder / "cell.sbatch").write_text(
        _CELL.format(name=plan.recipe.name, flags=" --retry_failed" if plan.retry_failed else "")
    )
    submit = folder / "submit.sh"
    places = {"python": sys.executable, "checkout": Path.cwd(), "folder": folder.resolve(), "out": out.resolve()}
    submit.write_text(
        _SUBMIT.format(
            name=plan.recipe.name,
            count=len(plan.to_run()),
            here=folder,
            calls="\n".join(calls),
            **{key: shlex.quote(str(value)) for key, value in places.items()},
        )
    )
    submit.chmod(0o755)
    return submit


def _by_processes(cells: Sequence[Cell]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for cell in cells:
        groups.setdefault(cell.processes, []).append(cell.number)
    return groups


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as Slurm writes them: ``1-3,7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
