"""The main job once for each method, same seed and tokens, and the table of what each saved and cost.

    python -m experiments.compare_methods [--runs first|all] [--out FILE] [--without_times] [-- training flags]

Every run appends its row to the file; methods that have one are not run again. The table is printed as Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from experiments.method_settings import ALL_RUNS, FIRST_RUNS, Run
from experiments.training import train
from fsdp_lab import results
from fsdp_lab.user_errors import unix_pipes

SETS = {"first": FIRST_RUNS, "all": ALL_RUNS}


def run(chosen: Run, out: Path, ranks: int, flags: list[str]) -> None:
    """One training run; its row goes to ``out``, also when it fails."""
    method, settings, parameters, parameter_settings = chosen
    own = ["--comm_compress", method, "--comm_config_json", json.dumps(settings)]
    own += ["--param_compress", parameters, "--param_config_json", json.dumps(parameter_settings)]
    code = train([*own, *flags], ranks, out)
    if code == 2:  # a mistake in the flags is one in every run
        sys.exit(code)


def find(rows: list[dict[str, Any]], chosen: Run) -> dict[str, Any] | None:
    """The last row of one run, if there is one."""
    keys = ("compress_method", "compress_config", "param_compress_method", "param_compress_config")
    found = [row for row in rows if tuple(row[key] for key in keys) == chosen]
    return found[-1] if found else None


def table(rows: list[dict[str, Any]], times: bool = True) -> str:
    """Markdown: every row against the first (`none`). A failed run keeps its place."""
    base = rows[0]["val_ppl"]
    columns = ["gradients", "parameters", "gradient ratio (fp32)", "ratio of all traffic", "against bf16"]
    columns += ["sent a step", *(["step, median"] if times else []), "PPL", "against none"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        name = " ".join([row["compress_method"], *(f"{k}={v}" for k, v in row["compress_config"].items())])
        if row["status"] != "ok":
            lines.append(
                f"| {name} | {row['param_compress_method']} | {row['status']}: {row['error']} |"
                + " |" * (len(columns) - 3)
            )
            continue
        cells = [name, row["param_compress_method"], f"{row['compression_ratio_reduce_scatter']:.2f}x"]
        cells += [f"{row['compression_ratio']:.2f}x", f"{row['compression_ratio_vs_bf16']:.2f}x"]
        cells += [f"{row['bytes_compressed_total'] / row['steps'] / 1e6:.2f} MB"]
        cells += [f"{row['step_time_ms_p50']:.0f} ms"] if times else []
        cells += [f"{row['val_ppl']:.1f}", f"{100 * (row['val_ppl'] / base - 1):+.2f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", choices=sorted(SETS), default="first")
    parser.add_argument("--out", type=Path, default=Path("results/reference/first_methods.jsonl"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--without_times", action="store_true", help="for rows from a machine that was not idle")
    parser.add_argument("flags", nargs="*", help="flags of fsdp_lab.train, after --")
    options = parser.parse_args()
    for chosen in SETS[options.runs]:
        rows = results.load(options.out) if options.out.exists() else []
        if find(rows, chosen) is None:  # a failed run is an answer too
            print(f"running {chosen}", file=sys.stderr, flush=True)
            run(chosen, options.out, options.ranks, options.flags)
    rows = results.load(options.out)
    found = [row for chosen in SETS[options.runs] if (row := find(rows, chosen)) is not None]
    print(table(found, not options.without_times))


if __name__ == "__main__":
    with unix_pipes():
        main()
