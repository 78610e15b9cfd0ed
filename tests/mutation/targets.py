"""Which tests ought to notice a mutant of a module, in stages: in this process first, then with real ranks."""

from __future__ import annotations

Stages = list[list[str]]
_LIBRARY = "tests/comm_compress"


def _laws(*which: str) -> list[str]:
    """The conformance laws for some rows of the table."""
    return [f"{_LIBRARY}/test_conformance.py", "-k", f"test_law and ({' or '.join(which)})"]


def _files(*names: str) -> list[str]:
    return [f"{_LIBRARY}/{name}.py" for name in names]


_FEW = ("identity-default", "int8-default", "topk-default", "rans-what_is", "majority-default")

TARGETS: dict[str, Stages] = {
    "integrations/allreduce": [_files("integrations/test_allreduce"), _files("integrations/test_ddp")],
    "core/compressor": [
        _files("core/test_compressor"),
        _files("test_laws"),
        _laws("identity-default", "int8-default", "fp8 and error_feedback"),
    ],
    "core/encoded": [_files("core/test_encoded"), _laws(*_FEW)],
    "wrappers/entropy": [_files("wrappers/test_entropy", "core/test_compressor")],
    "wrappers/error_feedback": [_files("wrappers/test_error_feedback"), _laws("feedback_loses_nothing", "reset_every")],
    "wrappers/by_layer": [_files("wrappers/test_by_layer"), _laws("layers"), _files("methods/test_delta")],
    "core/ledger": [_files("core/test_ledger"), _files("integrations/test_fsdp")],
    "core/nonfinite": [[*_files("core/test_nonfinite"), "-k", "not whatever"], _laws("identity-default")],
    "wrappers/warmup": [_files("wrappers/test_warmup"), _laws("warmup_steps", "min_numel")],
    "core/rounds": [_files("core/test_rounds"), _laws(*_FEW)],
    "core/segments": [_files("core/test_segments"), _laws("powersgd-default", "layers")],
    "inspection": [_files("test_inspection")],
    "drive/simulate": [_files("drive/test_simulate"), _laws(*_FEW)],
    "core/state": [
        _files("core/test_state"),
        _laws("topk-default", "delta-default", "layers"),
        _files("core/test_workspaces"),
    ],
    "drive/transport": [
        _files("drive/test_transport"),
        _files("integrations/test_fsdp", "integrations/fsdp/test_prefetch"),
    ],
    "integrations/fsdp/overlap": [_files("integrations/fsdp/test_overlap")],
    "core/traits": [_files("core/test_traits")],
    "core/workspace": [_files("core/test_workspace"), _files("core/test_workspaces")],
}
"""By module of the library, as its path within comm_compress."""
