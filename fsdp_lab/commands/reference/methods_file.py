"""Writes methods.json: what the registry says of every method, and what was measured of it.

    python -m fsdp_lab.commands.reference.methods_file             # writes it anew, beside this module
    python -m fsdp_lab.commands.reference.methods_file --check     # 1 when it is not what would be written

`fsdp-lab methods` and the reference pages read the file, since the registry itself needs torch, whose import takes two
seconds. A test holds it up to date. The measurements are those of results/reference/, so this runs in a checkout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

import comm_compress as cc
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

if TYPE_CHECKING:
    from torch import Tensor

FILE = Path(__file__).with_name("methods.json")
_ROOT = Path(__file__).resolve().parents[3]
_FIDELITY = "results/reference/errors/fidelity.jsonl"
_SPEED = "results/reference/benchmarks/codecs_cpu.json"
_SIDE, _STEPS = 512, 12  # gradiveq learns its basis in the first ten steps


class Fidelity(TypedDict):
    """What arrives, of one label on one kind of data ("gauss", "laplace", "gradients"): a row of fidelity.jsonl.

    ``bits`` an element, all in all. ``nmse``: squared error over squared size. ``cosine``: of the angle between what
    was given and what arrived. Error feedback is off, which is why ``label`` may say so.
    """

    label: str
    data: str
    bits: float
    nmse: float
    cosine: float


class Speed(TypedDict):
    """How fast the codec is by default: ``gb_s`` 1e9 bytes of input a second, by ``threads`` threads.

    ``operation``: "encode", "encode with feedback", "decode", "sum W=2" (two rows decoded and summed), "sum W=8", or,
    of methods that are no codecs, "all rounds" and "all rounds with feedback".
    """

    operation: str
    threads: int
    gb_s: float


class Method(cc.Description):
    """A method in the file: what `comm_compress.describe` returns, and what was measured.

    ``bits``: bits an element by default, measured on ``bits_on``: "gradients" (those of fidelity.jsonl) or, where that
    file has no row of the default settings, "gauss" (a matrix of Gaussian numbers; for `delta` their change by other
    such numbers); "definition" for `none`.
    """

    bits: float
    bits_on: str
    fidelity: list[Fidelity]
    speed: list[Speed]


class Methods(TypedDict):
    """The whole file. ``common``: `comm_compress.describing.Common`.

    ``measured``: the two files that measurements come from, and the machine of the second: its processor, its cores and
    the MiB that were encoded.
    """

    methods: list[Method]
    common: cc.Common
    measured: dict[str, Any]
    note: NotRequired[str]


def written() -> Methods:
    """What the file should hold, in a checkout. Needs torch, and takes a second."""
    rows = [json.loads(line) for line in (_ROOT / _FIDELITY).read_text().splitlines()]
    speeds = json.loads((_ROOT / _SPEED).read_text())
    machine, settings = speeds["machine"], speeds["settings"]
    return Methods(
        note="made by python -m fsdp_lab.commands.reference.methods_file; do not edit",
        measured={
            "fidelity": _FIDELITY,
            "speed": _SPEED,
            "cpu": machine["cpu"],
            "cores": machine["cores"],
            "mib": settings["mib"],
        },
        common=cc.describe_common(),
        methods=[_method(ours, rows, speeds["rows"]) for ours in _ours()],
    )


def as_text(content: Methods) -> str:
    """As the file has it: indented, so that a change shows in a diff."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read() -> Methods:
    """What the file holds; needs no torch."""
    return cast(Methods, json.loads(FILE.read_text(encoding="utf-8")))


def _ours() -> Iterator[cc.Description]:
    """The methods of this project, without those of plugins that happen to be installed."""
    for name in cc.available():
        description = cc.describe(name)
        if description["module"].startswith("comm_compress.") or name == "none":
            yield description


def _method(ours: cc.Description, rows: Sequence[dict[str, Any]], speeds: Sequence[dict[str, Any]]) -> Method:
    name = ours["name"]
    fidelity = [_fidelity(row) for row in rows if row["method"] == name]
    by_default = [line["bits"] for line in fidelity if line["label"] == name and line["data"] == "gradients"]
    if name == "none":
        bits, bits_on = 32.0, "definition"
    elif by_default:
        bits, bits_on = by_default[0], "gradients"
    else:
        bits, bits_on = bits_by_default(ours), "gauss"
    speed = [_speed(row) for row in speeds if row["method"] == name and not row["config"] and not row["implementation"]]
    measured = {"bits": bits, "bits_on": bits_on, "fidelity": fidelity, "speed": speed}
    return cast(Method, {**ours, **measured})


def _fidelity(row: dict[str, Any]) -> Fidelity:
    return Fidelity(
        label=cc.labels.label(row["method"], row["config"]),
        data=row["data"],
        bits=round(row["bits"], 3),
        nmse=float(f"{row['nmse']:.3g}"),
        cosine=round(row["cosine"], 6),
    )


def _speed(row: dict[str, Any]) -> Speed:
    return Speed(operation=row["operation"], threads=row["threads"], gb_s=round(row["gb_s"], 2))


def bits_by_default(method: cc.Description) -> float:
    """Bits an element of Gaussian numbers: gradients, or the changes of parameters of a method for these alone."""
    return _of_gradients(method["name"]) if method["gradients"] else _of_changes(method["name"])


def _of_gradients(name: str) -> float:
    """Bits an element of a Gaussian matrix that is reduced again and again, without feedback; the last time counts."""
    sent = cc.roundtrip(_gaussian(0), {"method": name, "error_feedback": False}, steps=_STEPS)
    return round(sent.bits_per_element, 2)


def _of_changes(name: str) -> float:
    """Bits an element of the second all-gather of Gaussian parameters, all of which have moved meanwhile."""
    import torch  # `read` needs none

    model = torch.nn.Linear(_SIDE, _SIDE, bias=False)
    model.weight.data = _gaussian(0)
    ranks = cc.VirtualRanks(model, 2, [], all_gather=name)
    counted = []
    for step in range(2):
        with ranks.gathered():
            model(torch.zeros(1, _SIDE))
        counted.append(ranks.ledger.totals("all_gather"))
        model.weight.data = model.weight.data + 0.01 * _gaussian(step + 1)
    first, both = counted
    return round(8 * (both.sent_bytes - first.sent_bytes) / (both.elements - first.elements), 2)


def _gaussian(seed: int) -> Tensor:
    import torch

    return torch.randn(_SIDE, _SIDE, generator=torch.Generator().manual_seed(seed))


def main(argv: Sequence[str]) -> int:
    """Write the file, or with ``--check`` compare it."""
    parser = program("fsdp_lab.commands.reference.methods_file", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the file is out of date")
    check = parser.parse_args(argv).check
    with user_errors("methods_file"):
        if not (_ROOT / _FIDELITY).exists():
            raise ValueError(f"no {_FIDELITY} beside the package: run this in a checkout")
        text = as_text(written())
    if not check:
        FILE.write_text(text, encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text:
        print(f"{FILE.name} is out of date: python -m fsdp_lab.commands.reference.methods_file", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
