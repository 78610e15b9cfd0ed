"""Which tests ought to notice a mutant of a module, in stages: in this process first, then with real ranks."""

from __future__ import annotations

_LIBRARY = "tests/comm_compress"


def _laws(*which: str) -> list[str]:
    """The conformance laws for some rows of the table."""
    return [f"{_LIBRARY}/test_conformance.py", "-k", f"test_law and ({' or '.join(which)})"]


def _files(*names: str) -> list[str]:
    return [f"{_LIBRARY}/test_{name}.py" for name in names]


_FEW = ("identity-default", "int8-default", "topk-default", "error_feedback=True-scale", "entropy=rans-what")

TARGETS: dict[str, list[list[str]]] = {
    "allreduce": [_files("allreduce"), _files("ddp"), _files("hsdp")],
    "compressor": [_files("compressor", "laws"), _laws("identity-default", "fp8-error_feedback", "int8-scale=global")],
    "encoded": [_files("encoded"), _laws(*_FEW)],
    "entropy": [_files("entropy")],
    "feedback": [_files("feedback"), _laws("topk-k=3", "topk-warmup", "bf16-error_feedback", "powersgd-rank=3")],
    "layers": [_files("layers"), _laws("layers"), _files("delta")],
    "ledger": [_files("ledger"), _files("fsdp")],
    "nonfinite": [_laws("identity-default"), _files("nonfinite")],
    "policy": [_files("policy"), _laws("warmup_steps", "min_numel")],
    "rounds": [_files("rounds"), _laws(*_FEW)],
    "segments": [_files("segments"), _laws("powersgd-default", "layers"), _files("virtual")],
    "simulate": [_files("simulate"), _laws(*_FEW, "int8-scale=global", "signsgd-mode=majority-default")],
    "state": [_files("state"), _laws("topk-default", "delta-default", "layers", "dtype"), _files("workspaces")],
    "transport": [_files("workspaces"), _files("conformance") + ["-k", "virtual"], _files("fsdp", "prefetch")],
    "workspace": [_files("workspace"), _files("workspaces"), _files("prefetch")],
}
