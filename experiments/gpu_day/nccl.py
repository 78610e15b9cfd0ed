"""Trainings of two ranks over NCCL on one GPU: is `identity` stock FSDP2 bit for bit, and does every method end well?

    python -m experiments.gpu_day.nccl --out FOLDER [--model gpt2-62m] [--methods none "identity + identity" ...]

NCCL refuses two ranks that have one GPU of one host. Here each rank says that it has a host of its own (NCCL_HOSTID),
so that NCCL sends between them as between two machines, through sockets, on the loopback interface: the same calls and
kernels, and a slow wire. The ranks take turns on the GPU: no time here is one of a cluster. FOLDER gets nccl.jsonl (a
row for each training), nccl.json and nccl.md, and what each rank printed. Exit code 1: a training failed, or `identity`
did not end where `none` did.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from experiments.gpu_day.table import FEW_BITS, ROOT
from experiments.runs.method_flag import a_method_or_none, folder_name
from experiments.runs.processes import dying_with_this_process, end
from experiments.sweeps.plan import sound_rows
from fsdp_lab.files.atomic import make_folder, write_bytes, write_json
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

WORLD = 2
STOCK, SAME = "none", "identity + identity"
METHODS = (
    *(STOCK, SAME, "bf16 + bf16", "int8 + int8", "int4 hadamard + delta", "topk ratio=0.01 + delta"),
    *("powersgd + int8", "signsgd + bf16", "ecsq step=0.25 + delta mode=grid step=0.05"),
    *("lowrank rank=20 + delta mode=grid step=0.05", "int8 entropy=rans + delta mode=lossless", *FEW_BITS),
)
_GRACE_S = 10  # for the other rank, after one has failed


def main(argv: Sequence[str]) -> int:
    """Train with every method; returns 1 where something is not as it should be."""
    options = _parser().parse_args(argv)
    with user_errors("nccl"):
        if options.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device: torch sees no CUDA device")
        make_folder(options.out, "out")
        _begin_anew(options.out)
    methods = list(dict.fromkeys(options.methods))
    with ThreadPoolExecutor(options.at_once) as together:
        codes = dict(zip(methods, together.map(lambda method: _train(method, options), methods), strict=True))
    rows = {row["run_name"]: row for row in sound_rows(options.out / "nccl.jsonl")}
    last_rows = {method: rows.get(folder_name(method)) for method in methods}
    wrong = complaints(codes, last_rows)
    record = {
        "machine": hardware(),
        "versions": versions(),
        "exit_codes": codes,
        "complaints": wrong,
        "rows": last_rows,
    }
    write_json(options.out / "nccl.json", record)
    write_bytes(options.out / "nccl.md", page(codes, last_rows, wrong).encode())
    print(page(codes, last_rows, wrong))
    return 1 if wrong else 0


def complaints(codes: Mapping[str, int], rows: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """What is not as it should be, a sentence each."""
    said = [f"{method}: exit code {code}" for method, code in codes.items() if code]
    stock, same = rows.get(STOCK), rows.get(SAME)
    if stock is None or same is None or codes[STOCK] or codes[SAME]:
        return said
    unlike = [name for name in ("train_loss", "val_loss") if stock[name] != same[name]]
    return [*said, *(f"{SAME}: {name} {same[name]!r}, not {stock[name]!r} as {STOCK}" for name in unlike)]


def page(codes: Mapping[str, int], rows: Mapping[str, Mapping[str, Any] | None], wrong: Sequence[str]) -> str:
    """All trainings in a table, in Markdown."""
    lines = ["# Two ranks over NCCL on one GPU", "", "| method | ended | sent MB a step | validation loss |"]
    lines.append("| --- | --- | ---: | ---: |")
    for method, code in codes.items():
        row, ended = rows.get(method), "well" if code == 0 else f"exit code {code}"
        if row is None or row["val_loss"] is None:
            lines.append(f"| {method} | {ended} | - | - |")
        else:
            lines.append(f"| {method} | {ended} | {_sent(row)} | {row['val_loss']:.6f} |")
    compared = all(rows.get(method) is not None for method in (STOCK, SAME))
    lines += ["", *(wrong or [f"`{SAME}` and `{STOCK}` have the same losses, to the last bit."] * compared)]
    return "\n".join(lines) + "\n"


def _sent(row: Mapping[str, Any]) -> str:
    return f"{row['bytes_compressed_total'] / row['steps'] / 1e6:.1f}" if row["bytes_compressed_total"] else "-"


def _begin_anew(out: Path) -> None:
    """Take away what an earlier call left: its runs have the names that these will have."""
    shutil.rmtree(out / "runs", ignore_errors=True)
    (out / "nccl.jsonl").unlink(missing_ok=True)


def _train(method: str, options: argparse.Namespace) -> int:
    """Train with one method; returns the exit code of the rank that failed first, 0: of none, 124: out of time."""
    port, ranks = _free_port(), list[subprocess.Popen[bytes]]()
    try:
        for rank in range(WORLD):
            with (options.out / f"{folder_name(method)}-rank{rank}.log").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "fsdp_lab.train", *_flags(method, options)],
                        cwd=ROOT,
                        env=_environment(rank, port, options.device),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=dying_with_this_process(signal.SIGTERM),
                    )
                )
        return next((code for code in (rank.wait(options.seconds) for rank in ranks) if code), 0)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        end(ranks, _GRACE_S)


def _environment(rank: int, port: int, device: str) -> dict[str, str]:
    """The variables of one rank: alone on its host, as launchers of several machines would say."""
    places = {"RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    where = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    apart = {"NCCL_HOSTID": f"rank-{rank}", "NCCL_IB_DISABLE": "1"}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return rank_environment(WORLD) | {name: str(value) for name, value in places.items()} | where | apart | hidden


def _flags(method: str, options: argparse.Namespace) -> list[str]:
    given = {
        "model": options.model,
        "batch_size": options.batch_size,
        "max_length": options.length,
        "max_steps": options.steps,
        "val_fraction": 0.005,  # of the embedded text: enough for a loss to tell two trainings apart
        "warmup_steps": max(options.steps // 3, 1),
        "run_name": folder_name(method),
        "results_path": (options.out / "nccl.jsonl").absolute(),
        "output_dir": (options.out / "runs").absolute(),
        "cache_dir": (options.out / "cache").absolute(),
        "save_model": "false",
        "tensorboard": "false",
        "seed": 1,
    }
    return ["--method", method, *(word for name, value in given.items() for word in (f"--{name}", str(value)))]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _parser() -> Parser:
    parser = program("experiments.gpu_day.nccl", __doc__)
    parser.add_argument("--out", type=new_folder, required=True, help="folder for rows, tables and logs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: over gloo, to try this program")
    parser.add_argument("--model", default="gpt2-62m", help="a preset of docs/trainer/models.md")
    parser.add_argument("--methods", type=a_method_or_none, nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--batch_size", type=whole(1), default=4, help="sequences of a step and rank")
    parser.add_argument("--length", type=whole(2), default=256, help="tokens of a sequence")
    parser.add_argument("--steps", type=whole(2), default=10)
    parser.add_argument("--at_once", type=whole(1), default=4, help="trainings at the same time")
    parser.add_argument("--seconds", type=whole(1), default=120, help="after these a training is stopped")
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
