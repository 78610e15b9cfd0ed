"""All checks of a comparison, in the order in which a verdict names what they find."""

from __future__ import annotations

from analysis.checks.comparing import baselines, data, machines, outer_rates, seeds, tuning
from analysis.checks.comparing.wording import Check

CHECKS: tuple[Check, ...] = (
    baselines.no_baseline,
    seeds.one_seed,
    seeds.few_seeds,
    baselines.no_16_bit_baseline,
    baselines.seeds_without_16_bits,
    baselines.no_identity_on_gloo,
    data.different_tokens,
    data.other_stream,
    data.other_start,
    machines.pairs_of_two_processors,
    seeds.seeds_not_shared,
    seeds.missing_runs,
    baselines.baseline_failed,
    seeds.repeated_runs,
    tuning.unequal_tuning,
    tuning.best_at_the_edge,
    tuning.tuned_otherwise,
    outer_rates.unequal_outer_rates,
    machines.mixed_hardware,
    machines.mixed_allocators,
    machines.mixed_versions,
    machines.dirty_checkout,
    machines.other_schedule,
    baselines.better_than_uncompressed,
    tuning.other_candidates,
    tuning.other_tuning_seeds,
)
