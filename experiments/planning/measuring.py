"""Ranks of this machine measured as devices, behind emulated links and with processor quotas where asked."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from experiments.network.namespaces import Namespaces, burst_bytes
from experiments.network.rates_and_delays import parse_rate
from experiments.runs.quotas import Quotas
from experiments.runs.training import torchrun
from fsdp_lab.parallel.planning.devices import Devices
from fsdp_lab.ranks.environment import rank_environment

_MEASURE = "fsdp_lab.parallel.planning.measuring.measure"


def measured(words: Sequence[str], ranks: int, rate: str | None, quotas: Sequence[float] | None) -> Devices:
    """Start the ranks of `planning.measuring.measure` with its flags ``words``, and read what they wrote.

    ``rate`` and ``quotas`` None: as the machine is, over its loopback. RuntimeError when a rank fails,
    UnavailableError as `Namespaces`.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        out = Path(folder) / "devices.json"
        flags = ["--out", str(out), *words]
        if rate is None and quotas is None:
            code = torchrun(_MEASURE, flags, ranks).returncode
        else:
            bits = parse_rate(rate or "none")
            flags += ["--burst_kb", str(burst_bytes(bits / 8) / 1e3 if bits else 0)]
            net = stack.enter_context(Namespaces(ranks, rate or "none"))
            hold = None if quotas is None else stack.enter_context(Quotas(quotas)).hold
            code = net.run([sys.executable, "-m", _MEASURE, *flags], rank_environment(ranks), on_start=hold)
        if code:
            raise RuntimeError(f"the ranks that measure ended with exit code {code}")
        return Devices.read(out)
