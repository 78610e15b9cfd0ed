"""Samples of what compression costs: averaged, those without a value left out."""

from __future__ import annotations

import math

import comm_compress as cc
from fsdp_lab.measure.samples import Sample, Samples


def test_samples_are_averaged_and_those_without_a_value_left_out() -> None:
    samples = Samples()
    assert samples.row() == {
        "grad_samples": 0,
        "grad_rel_error": None,
        "grad_cos_sim": None,
        "residual_norm": None,
        "density": None,
    }
    one = cc.Comparison(error=0.5, exact=2, reduced=2, product=1, residual=2, gradient=8, carried=1, elements=10)
    other = cc.Comparison(error=1.5, exact=6, reduced=6, product=3, residual=6, gradient=24, carried=3, elements=10)
    samples.add(Sample.of([one, other]))
    samples.add(Sample.of([cc.Comparison(error=math.nan, exact=math.nan, gradient=math.nan, elements=10)]))
    row = samples.row()
    assert (row["grad_samples"], row["grad_rel_error"], row["grad_cos_sim"]) == (2, 0.5, 0.5)
    assert (row["residual_norm"], row["density"]) == (0.5, (0.2 + 0) / 2)
