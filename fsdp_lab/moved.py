"""Commands that have moved: their old lines still work.

Notes, scripts and papers keep lines such as ``python -m experiments.bench_codecs``. Python imports a command's package
before it looks for the module, so that is where an old name can be exchanged for the new one: the interpreter starts
again with it. No module has to be left behind in the old place, and an ``import`` of an old name fails as ever.
"""

from __future__ import annotations

import os
import sys

MOVED = {
    "analysis.bench_report": "experiments.bench.trainer.report",
    "analysis.fairness": "analysis.checks",
    "analysis.frames": "analysis.rows",
    "analysis.rows.pack_curves": "analysis.rows.curves.pack",
    "analysis.scaling": "analysis.predict.scaling",
    "analysis.speedup": "analysis.predict.speedup",
    "experiments.bench.activations": "experiments.bench.traffic.activations",
    "experiments.bench.audit": "experiments.bench.traffic.audit",
    "experiments.bench.checkpoint": "experiments.bench.trainer.checkpoint",
    "experiments.bench.codecs": "experiments.bench.traffic.codecs",
    "experiments.bench.collectives": "experiments.bench.traffic.collectives",
    "experiments.bench.eagle": "experiments.bench.computation.eagle",
    "experiments.bench.harness": "experiments.bench.trainer.harness",
    "experiments.bench.layouts": "experiments.bench.traffic.layouts",
    "experiments.bench.link": "experiments.bench.traffic.link",
    "experiments.bench.operators": "experiments.bench.computation.operators",
    "experiments.bench.prefetch": "experiments.links.overlap",
    "experiments.bench.profiler": "experiments.bench.trainer.profiler",
    "experiments.bench.rans": "experiments.bench.traffic.rans",
    "experiments.bench.report": "experiments.bench.trainer.report",
    "experiments.bench.roofline": "experiments.bench.computation.roofline",
    "experiments.bench.tokenize": "experiments.bench.trainer.tokenize",
    "experiments.bench_checkpoint": "experiments.bench.trainer.checkpoint",
    "experiments.bench_codecs": "experiments.bench.traffic.codecs",
    "experiments.bench_eagle": "experiments.bench.computation.eagle",
    "experiments.bench_harness": "experiments.bench.trainer.harness",
    "experiments.bench_link": "experiments.bench.traffic.link",
    "experiments.bench_prefetch": "experiments.links.overlap",
    "experiments.bench_profiler": "experiments.bench.trainer.profiler",
    "experiments.bench_tokenize": "experiments.bench.trainer.tokenize",
    "experiments.bottleneck": "experiments.links.bottleneck",
    "experiments.calibrate": "experiments.links.calibrate",
    "experiments.capture": "experiments.fidelity.capture",
    "experiments.hostile": "experiments.faults.hostile",
    "experiments.link_matrix": "experiments.links.matrix",
    "experiments.soak": "experiments.faults.soak",
    "experiments.update_error": "experiments.fidelity.update_error",
    "fsdp_lab.cli": "fsdp_lab.settings",
    "fsdp_lab.eagle.export": "fsdp_lab.eagle.draft.export",
}
"""Old names of modules that ``python -m`` runs, and today's."""


def run_what_moved() -> None:
    """Start Python again with today's name, where ``python -m`` was given an old one; say so on stderr.

    Called as `fsdp_lab` is imported, which every package with commands does first.
    """
    if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv:  # ["-m"]: Python looks for the module at this moment
        return
    place = sys.orig_argv.index("-m") + 1
    old = sys.orig_argv[place]
    if old in MOVED:
        print(f"{old} is {MOVED[old]} now", file=sys.stderr, flush=True)
        line = [sys.executable, *sys.orig_argv[1:place], MOVED[old], *sys.orig_argv[place + 1 :]]
        os.execv(sys.executable, line)
