"""Methods with their settings, as they are measured: without and with error feedback, beside their peers."""

from __future__ import annotations

from typing import Any, NamedTuple

import comm_compress as cc
from experiments.bench.traffic.codecs.eager import eager
from experiments.bench.traffic.codecs.peers import peers
from experiments.bench.traffic.codecs.timing import Timing, measure, runs
from experiments.bench.traffic.codecs.unit import Unit
from experiments.fidelity.method_settings import Settings, plain


class Variant(NamedTuple):
    """A method with its settings, without and with error feedback."""

    method: str
    config: Settings
    plain: cc.Compressor
    with_feedback: cc.Compressor | None

    @property
    def label(self) -> str:
        """The variant as a text that tables print."""
        return label(self.method, self.config)


def label(method: str, config: Settings) -> str:
    """A method and the settings that differ from its defaults: texts speak for themselves, numbers are given with their
    name."""
    return " ".join([method, *(_setting(key, value) for key, value in config.items())])


def _setting(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{key}: " + label(value["method"], {k: v for k, v in value.items() if k != "method"})
    if value is True:
        return key
    return value if isinstance(value, str) else f"{key}={value}"


def variant(method: str, config: Settings) -> Variant:
    """The variant that a user asked for, built. ValueError when there is no such method."""
    if method == "none":
        raise ValueError("--methods: none registers no hook, there is nothing to measure")
    compressor = plain(method, config)
    feeds_back = (
        compressor.traits.for_gradients and not compressor.traits.lossless and not compressor.traits.no_feedback
    )
    return Variant(
        method, config, compressor, cc.make(method, {**config, "error_feedback": True}) if feeds_back else None
    )


def measured(v: Variant, unit: Unit, repeats: int, with_peers: bool) -> tuple[list[Timing], set[str]]:
    """One method's rows and its peers', with the current number of threads, and which peers are not installed."""
    ours = runs(v.plain, v.with_feedback, unit)
    theirs, missing = peers(v.method, v.config, unit) if with_peers else ([], set())
    references = eager(v.plain, v.with_feedback, unit) if with_peers else []
    return measure(v.method, v.config, [*ours, *references, *theirs], unit, repeats), missing
