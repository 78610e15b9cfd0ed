"""Flags that no setting takes."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.faults.hostile.case import Case, Make
from experiments.faults.hostile.limited_process import trained


def _check(*flags: str) -> Make:
    return lambda folder: [
        "fsdp_lab.settings",
        "check",
        "--",
        *(flag.replace("FOLDER", str(folder)) for flag in flags),
    ]


def _trained_on(embedded: float, other: float) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "text.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
        mix = json.dumps({"embedded": embedded, str(folder / "text.jsonl"): other})
        return trained(folder / "out", "--data_mix", mix)

    return make


_ABSURD = {
    "a seed of 400 digits": (["--seed", "9" * 400], "--seed: got"),
    "a seed of 5,000 digits": (["--seed", "9" * 5000], "--seed: got"),
    "a batch size of 30 digits": (["--batch_size", "9" * 30], "does not fit in 64 bits"),
    "a learning rate of 1e999": (["--learning_rate", "1e999"], "--learning_rate: got"),
    "a learning rate of 400 digits": (["--learning_rate", "9" * 400], "--learning_rate: got"),
    "NaN in a method's settings": (["--comm_config_json", '{"ratio": NaN}'], "NaN is not a JSON number"),
    "400 digits in a method's settings": (["--comm_config_json", '{"ratio": ' + "9" * 400 + "}"], "64 bits"),
    "60,000 brackets as a method's settings": (["--comm_config_json", "[" * 60_000], "nested too deeply"),
    "a key twice in a method's settings": (["--comm_config_json", '{"a": 1, "a": 2}'], "'a' appears twice"),
    "a run's name that leads out of its folder": (["--run_name", "../../up"], "--run_name"),
    "a flag that does not exist": (["--bathc_size", "8"], "did you mean --batch_size"),
}

CASES = [
    *(Case("flags", name, _check(*flags), says) for name, (flags, says) in _ABSURD.items()),
    Case("flags", "weights of 1e308", _trained_on(1e308, 1e308), "data_mix: the weight"),
    Case("flags", "a weight of 5e-324 beside 1", _trained_on(1.0, 5e-324), "data_mix: the weight"),
]
