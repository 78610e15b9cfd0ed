"""Methods as flags: names of files and runs that they give."""

from __future__ import annotations

from experiments.runs.method_flag import folder_name


def test_a_method_names_a_folder() -> None:
    assert folder_name("int8 + int8") == "int8-int8"
    assert folder_name("lowrank rank=28 values(ecsq step=0.25)") == "lowrank-rank=28-values-ecsq-step=0.25"


def test_long_methods_that_differ_at_their_end_have_names_that_a_run_may_have() -> None:
    long = "lowrank rank=28 lines=0.2 longer=5 values(ecsq step=0.25) right(ecsq step=0.15) rest(ecsq step=0.25)"
    names = [folder_name(f"{long} + {parameters}") for parameters in ("delta mode=grid", "delta mode=lossless")]
    assert len(set(names)) == 2
    assert all(len(name) == 80 for name in names)
