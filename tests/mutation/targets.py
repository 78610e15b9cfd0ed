"""Which tests ought to notice a mutant of a module, in stages: in this process first, then with real ranks."""

from __future__ import annotations

Stages = list[list[str]]
_LIBRARY = "tests/comm_compress"


def _laws(*which: str) -> list[str]:
    """The conformance laws for some rows of the table."""
    return [f"{_LIBRARY}/test_conformance.py", "-k", f"test_law and ({' or '.join(which)})"]


def _files(*names: str) -> list[str]:
    return [f"{_LIBRARY}/test_{name}.py" for name in names]


_FEW = ("identity-default", "int8-default", "topk-default", "rans-what_is", "majority-default")

TARGETS: dict[str, Stages] = {
    "allreduce": [_files("allreduce"), _files("ddp")],
    "compressor": [
        _files("compressor"),
        _files("laws"),
        _laws("identity-default", "int8-default", "fp8 and error_feedback"),
    ],
    "encoded": [_files("encoded"), _laws(*_FEW)],
    "entropy": [_files("entropy", "compressor")],
    "feedback": [_files("feedback"), _laws("feedback_loses_nothing", "reset_every")],
    "layers": [_files("layers"), _laws("layers"), _files("delta")],
    "ledger": [_files("ledger"), _files("fsdp")],
    "nonfinite": [[*_files("nonfinite"), "-k", "not whatever"], _laws("identity-default")],
    "policy": [_files("policy"), _laws("warmup_steps", "min_numel")],
    "rounds": [_files("rounds"), _laws(*_FEW)],
    "segments": [_files("segments"), _laws("powersgd-default", "layers")],
    "simulate": [_files("simulate"), _laws(*_FEW)],
    "state": [_files("state"), _laws("topk-default", "delta-default", "layers"), _files("workspaces")],
    "transport": [_files("transport"), _files("fsdp", "prefetch")],
    "workspace": [_files("workspace"), _files("workspaces")],
}
"""By module of the library."""
