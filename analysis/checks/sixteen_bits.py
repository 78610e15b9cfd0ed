"""Which arms send 16 bits both ways: the baseline of everything that claims to send less.

Nobody would choose float32 instead of compression: bf16 (or fp16) gradients and parameters are what anybody has without
it."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.comparing.remembered import remembered

HALF_DTYPES = ("bf16", "fp16")


@remembered
def carries_16_bits(runs: ArmRuns) -> bool:
    """Does all that another arm may compress travel in 16 bits, whether FSDP2 or a method makes it so?

    Of a divided model those are its activations and their gradients, whose arms leave the rest alone or narrow it, too.
    """
    arm = runs.arm
    if arm.takes_local_steps or (arm.compresses_optimizer and arm.optimizer not in HALF_DTYPES):
        return False
    if arm.compresses_activations:
        narrow = {arm.activations, arm.activation_gradients} <= set(HALF_DTYPES)
        rest = {arm.gradients, arm.parameters} <= {"none", *HALF_DTYPES}
        return narrow and rest
    gathered_in_16 = all(row.get("param_dtype") in HALF_DTYPES for row in runs.ended_well)
    gradients = arm.gradients in HALF_DTYPES or (not arm.compresses_gradients and arm.comm_dtype in HALF_DTYPES)
    return gradients and (arm.parameters in HALF_DTYPES or (not arm.compresses_parameters and gathered_in_16))


def compresses_further(runs: ArmRuns) -> bool:
    """Does the arm compress, so that it must be compared with 16 bits? Plain and merely narrower arms do not."""
    return not is_plain(runs.arm) and not carries_16_bits(runs)


def is_plain(arm: Arm) -> bool:
    """Is nothing compressed or left out, whether FSDP2's collectives or ours carry it?"""
    return not arm.sends_less


@remembered
def sixteen_bit_arm(comparison: Comparison) -> ArmRuns | None:
    """The arm in 16 bits with a finished run that has the most of the baseline's seeds; None where there is none."""
    candidates = [runs for runs in comparison.arms if carries_16_bits(runs) and runs.ended_well]
    wanted = None if comparison.baseline is None else comparison.baseline.runs.keys()

    def finished(runs: ArmRuns) -> int:
        return sum(wanted is None or row["seed"] in wanted for row in runs.ended_well)

    return max(candidates, key=finished, default=None)


@remembered
def baselines_of(comparison: Comparison) -> Sequence[str]:
    """The kinds of uncompressed or merely narrower runs that the comparison has: ``["bf16", "fp32"]``."""
    there = [runs for runs in comparison.arms if runs.ended_well]
    full = any(is_plain(runs.arm) and not carries_16_bits(runs) for runs in there)
    return ["bf16"] * any(carries_16_bits(runs) for runs in there) + ["fp32"] * full
