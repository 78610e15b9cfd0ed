"""Colours and markers: one a method, told apart whatever the reader's colour vision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis.figures.drawing.palette import LOOKS, look, shade

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency, IEEE TVCG
# 15(6), 2009, table of severity 1.0; for linear RGB
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# of the kinds of methods: baseline, block codes, unbiased rounding, signs, few elements, projections, parameters
LEADS = ("none", "int8", "qsgd", "onebit", "topk", "powersgd", "delta")


def linear(colour: str) -> Vector:
    """sRGB (IEC 61966-2-1) without its transfer function."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: Vector) -> Vector:
    """CIE 1976 L*a*b* of linear sRGB, white point D65."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = to_xyz @ rgb / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(first: str, second: str, vision: str) -> float:
    """CIE 1976 colour difference as such an eye sees it; about 2.3 is just noticeable."""
    seen = [lab(np.clip(VISIONS[vision] @ linear(colour), 0, 1)) for colour in (first, second)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def test_lab_of_known_colours() -> None:
    np.testing.assert_allclose(lab(linear("#FFFFFF")), [100, 0, 0], atol=0.02)
    np.testing.assert_allclose(lab(linear("#FF0000")), [53.24, 80.09, 67.20], atol=0.05)


@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_methods_differ_in_marker_or_clearly_in_colour(vision: str) -> None:
    for (one, a), (other, b) in itertools.combinations(LOOKS.items(), 2):
        if a.marker == b.marker:
            assert distance(a.colour, b.colour, vision) >= 20, (one, other)


@pytest.mark.parametrize("vision", VISIONS)
def test_kinds_of_methods_differ_in_colour_alone(vision: str) -> None:
    for one, other in itertools.combinations(LEADS, 2):
        assert distance(LOOKS[one].colour, LOOKS[other].colour, vision) >= 11, (one, other)


def test_no_two_methods_have_one_colour() -> None:
    assert len({seen.colour for seen in LOOKS.values()}) == len(LOOKS)


def test_an_arm_looks_like_the_method_of_its_gradients() -> None:
    assert look("int4 hadamard + delta") == LOOKS["int4"]


def test_a_plugins_method_always_looks_the_same() -> None:
    assert look("theirs") == look("theirs")
    assert look("theirs").colour not in {seen.colour for seen in LOOKS.values()}


def test_shades() -> None:
    assert [shade("#808080", amount) for amount in (-1, 0, 1)] == ["#000000", "#808080", "#FFFFFF"]
