"""The main job once for each method, same seed and tokens, and the table of what each saved and cost.

    python -m experiments.compare_methods [--out results/reference/first_methods.jsonl] [-- training flags]

Every run appends its row to the file; finished methods are not run again. The table is printed as Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fsdp_lab import results

RUNS: list[tuple[str, dict[str, Any], str]] = [  # gradients' method, its settings, parameters' method
    ("none", {}, "none"),
    ("identity", {}, "identity"),
    ("bf16", {}, "none"),
    ("fp16", {}, "none"),
    ("int8", {}, "none"),
    ("int8", {"scale": "global"}, "none"),
    ("topk", {"ratio": 0.01}, "none"),
    ("int8", {}, "int8"),
]


def run(method: str, settings: dict[str, Any], parameters: str, out: Path, ranks: int, flags: list[str]) -> None:
    """One training run; its row goes to ``out``. Ends the program when it fails."""
    command = [sys.executable, "-m", "fsdp_lab.launch", "--standalone", "--local-addr=127.0.0.1"]
    command += [f"--nproc-per-node={ranks}", "-m", "--", "fsdp_lab.train", "--comm_compress", method]
    command += ["--comm_config_json", json.dumps(settings), "--param_compress", parameters]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--output_dir", folder, "--results_path", str(out), "--no_tensorboard", "--no_save_model", *flags]
        if code := subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            sys.exit(code)


def find(rows: list[dict[str, Any]], method: str, settings: dict[str, Any], parameters: str) -> dict[str, Any] | None:
    """The finished row of one run, if there is one."""
    wanted = (method, settings, parameters)
    found = [
        row
        for row in rows
        if row["status"] == "ok"
        and (row["compress_method"], row["compress_config"], row["param_compress_method"]) == wanted
    ]
    return found[-1] if found else None


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: every row against the first (`none`)."""
    base = rows[0]["val_ppl"]
    lines = [
        "| gradients | parameters | gradient ratio (fp32) | ratio of all traffic | against bf16 | sent a step "
        "| step, median | PPL | against none |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = " ".join([row["compress_method"], *(f"{k}={v}" for k, v in row["compress_config"].items())])
        cells = [name, row["param_compress_method"], f"{row['compression_ratio_reduce_scatter']:.2f}x"]
        cells += [f"{row['compression_ratio']:.2f}x", f"{row['compression_ratio_vs_bf16']:.2f}x"]
        cells += [f"{row['bytes_compressed_total'] / row['steps'] / 1e6:.2f} MB", f"{row['step_time_ms_p50']:.0f} ms"]
        cells += [f"{row['val_ppl']:.1f}", f"{100 * (row['val_ppl'] / base - 1):+.2f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/reference/first_methods.jsonl"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("flags", nargs="*", help="flags of fsdp_lab.train, after --")
    options = parser.parse_args()
    for method, settings, parameters in RUNS:
        rows = results.load(options.out) if options.out.exists() else []
        if find(rows, method, settings, parameters) is None:
            print(f"running {method} {settings}, parameters {parameters}", file=sys.stderr, flush=True)
            run(method, settings, parameters, options.out, options.ranks, options.flags)
    rows = results.load(options.out)
    print(table([row for run_ in RUNS if (row := find(rows, *run_)) is not None]))


if __name__ == "__main__":
    main()
