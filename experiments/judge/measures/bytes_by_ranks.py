"""The method on two real ranks against the same on virtual ranks: bytes, totals, and what else passes between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comm_compress.drive import simulate
from experiments.judge.children import run_ranks
from experiments.judge.measures.rank import SHAPES, STEPS, rows_of, state_of
from experiments.judge.subject.job import WORLD, Fact, Job, check

_UNLIKE = 4.0  # errors of two ranks on rows of one distribution differ by percents
_EXACT = 1e-2  # of the other rows' error

Tensors = dict[str, Tensor]


def facts(job: Job) -> Iterator[Fact]:
    """The bits of both ranks, then a line for each check."""
    folder = Path(job.options["folder"])
    yield from found(job, run_ranks(job.file, job.method, folder, WORLD, float(job.options["limit_s"])), folder)


def found(job: Job, lines: Sequence[Sequence[Fact]], folder: Path) -> Iterator[Fact]:
    """What the lines of both ranks, and their tensors in ``folder``, say."""
    raised = [line["why"] for rank in lines for line in rank if line["kind"] == "raised"]
    yield check("runs_on_real_ranks", _RUNS, raised[0] if raised else "")
    if raised:
        return
    collectives = [_of_kind(rank, "collective") for rank in lines]
    watched = [_of_kind(rank, "watched")[0] for rank in lines]
    real = [torch.load(folder / f"rank{r}.pt", weights_only=True) for r in range(WORLD)]
    virtual, sent = _virtual(job)
    yield {"kind": "bits", "by_rank": [_bits(rank) for rank in collectives]}
    yield check("bytes_counted_are_bytes_moved", _BYTES, _uncounted(collectives, sent))
    yield check("only_messages_reach_other_ranks", _MESSAGES, _differs(real, virtual, watched))
    if job.make().traits.additive:
        yield check("what_a_rank_says_it_gave_arrives", _CLAIMS, _unlike_claims(real))
    yield check("ranks_are_alike", _ALIKE, _unlike_ranks(real, collectives))
    yield check("own_rows_are_like_others", _OWN, _own_row(real))
    opened = sorted({name for one in watched for name in one["opened"]})
    yield check("opens_nothing", _OPENS, f"during a collective it opened {_listed(opened)}" if opened else "")
    replaced = sorted({name for rank in lines for name in _of_kind(rank, "replaced")[0]["names"]})
    yield check("leaves_the_library_alone", _ALONE, f"it replaced {_listed(replaced)}" if replaced else "")
    yield {"kind": "memory", **_memory(watched)}


_RUNS = "Runs on ranks that are processes of their own, as in training."
_BYTES = "The bytes that reach torch's collectives are those that the method's messages say, and those it declares."
_MESSAGES = "Ranks in processes of their own get the same totals, bit for bit, as ranks side by side in one process."
_CLAIMS = "A rank's total is the sum of what the ranks say they gave it: error feedback believes them."
_ALIKE = "All ranks send as many bytes, with as much error, where their gradients are alike."
_OWN = "The row that stays on a rank has the same error as rows that travel: at two ranks it is half of all rows."
_OPENS = "No file is written, no socket and no program opened during a collective."
_ALONE = "No function of comm_compress or torch.distributed is replaced."


def _of_kind(lines: Sequence[Fact], kind: str) -> list[Fact]:
    return [line for line in lines if line["kind"] == kind]


def _virtual(job: Job) -> tuple[list[Tensors], dict[str, list[int]]]:
    """Totals of virtual ranks that begin with the same rows, and the bytes that each sends."""
    compressor = job.make()
    tensors: list[Tensors] = [{} for _ in range(WORLD)]
    sent = {}
    for shape in SHAPES:
        states = [state_of(rank, shape) for rank in range(WORLD)]
        for step in range(STEPS):
            inputs = [rows_of(rank, step, shape) for rank in range(WORLD)]
            for rows, state in zip(inputs, states, strict=True):
                state.begin(compressor.mark(rows))
            outcome = simulate.lockstep([compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)])
            name = f"{shape[0]}/{step}"
            sent[name] = [count.total for count in outcome.sent]
            for rank, result in enumerate(outcome.results):
                tensors[rank][f"total/{name}"] = result.total.clone()
    return tensors, sent


def _bits(collectives: Sequence[Fact]) -> dict[str, Any]:
    """Bits an element that had to reach another rank: declared (None: the data decide), counted, moved."""
    elements = sum(one["elements"] for one in collectives)
    sums: dict[str, Any] = {key: 8 * sum(one[key] for one in collectives) / elements for key in ("counted", "moved")}
    declared = [one["declared"] for one in collectives]
    return {**sums, "declared": None if None in declared else 8 * sum(declared) / elements}


def _uncounted(collectives: Sequence[Sequence[Fact]], virtual: dict[str, list[int]]) -> str:
    for rank, of_rank in enumerate(collectives):
        for one in of_rank:
            where = f"rank {rank}, {one['elements']} elements, collective {one['case']}"
            if one["by_itself"]:
                calls = _listed(one["by_itself"])
                return (
                    f"{where}: the method called torch's collectives by itself ({calls}); their bytes are not counted"
                )
            if one["moved"] != one["counted"]:
                return f"{where}: {one['moved']} bytes were moved, and its messages say {one['counted']}"
            if one["declared"] is not None and one["declared"] != one["counted"]:
                return f"{where}: {one['counted']} bytes were sent, and `traffic` declares {one['declared']}"
            if virtual[one["case"]][rank] != one["counted"]:
                side_by_side = virtual[one["case"]][rank]
                return f"{where}: {one['counted']} bytes on real ranks, {side_by_side} on virtual ones"
    return ""


def _differs(real: Sequence[Tensors], virtual: Sequence[Tensors], watched: Sequence[Fact]) -> str:
    for rank, (mine, other) in enumerate(zip(real, virtual, strict=True)):
        for name, total in other.items():
            if not torch.equal(mine[name], total):
                difference = float((mine[name] - total).norm() / total.norm().clamp_min(1e-30))
                changed = sorted({n for one in watched for n in one["changed"]})
                hint = f"; variables that changed meanwhile: {_listed(changed)}" if changed else ""
                return (
                    f"rank {rank}'s total ({name}) differs by {difference:.2g} of its size: in one process something "
                    f"beside the messages reaches the other rank, or something random does not come from "
                    f"`state.key`{hint}"
                )
    return ""


def _unlike_claims(real: Sequence[Tensors]) -> str:
    for rank, mine in enumerate(real):
        for name, total in mine.items():
            if not name.startswith("total/"):
                continue
            given = [other[name.replace("total/", "contribution/")][rank].double() for other in real]
            expected = torch.stack(given).sum(0)
            error = float((total.double() - expected).norm() / expected.norm().clamp_min(1e-30))
            if error > 1e-4:
                return f"rank {rank}'s total ({name.partition('/')[2]}) is {error:.2g} of its size off that sum"
    return ""


def _errors(real: Sequence[Tensors]) -> dict[tuple[int, int], float]:
    """Squared error of what sender s gave receiver r, over all collectives: ``{(s, r): ...}``."""
    sums = {(s, r): 0.0 for s in range(WORLD) for r in range(WORLD)}
    for sender, tensors in enumerate(real):
        for shape in SHAPES:
            for step in range(STEPS):
                rows = rows_of(sender, step, shape).double()
                lost = tensors[f"contribution/{shape[0]}/{step}"].double() - rows
                for receiver in range(WORLD):
                    sums[sender, receiver] += float(lost[receiver].square().sum() / rows[receiver].square().sum())
    return {key: value / (len(SHAPES) * STEPS) for key, value in sums.items()}


def _unlike_ranks(real: Sequence[Tensors], collectives: Sequence[Sequence[Fact]]) -> str:
    errors = _errors(real)
    by_sender = [sum(errors[s, r] for r in range(WORLD) if r != s) for s in range(WORLD)]
    sent = [sum(one["counted"] for one in of_rank) for of_rank in collectives]
    for what, values, floor in (("squared error", by_sender, 1e-9), ("bytes", sent, 0.0)):
        least, most = min(values), max(values)
        if most > floor and most > _UNLIKE * least:
            said = ", ".join(f"rank {rank}: {value:.3g}" for rank, value in enumerate(values))
            return f"{what} by sender on alike gradients: {said}; one rank is favoured"
    return ""


def _own_row(real: Sequence[Tensors]) -> str:
    errors = _errors(real)
    own = sum(errors[s, s] for s in range(WORLD)) / WORLD
    others = sum(errors[s, r] for s in range(WORLD) for r in range(WORLD) if r != s) / WORLD / (WORLD - 1)
    if others > 1e-9 and own < _EXACT * others:
        return (
            f"relative squared error {own:.2g} in the row that a rank keeps, {others:.2g} in rows that it sends: the "
            "uncompressed gradient is kept and used in place of the message; at two ranks that takes away half of the "
            "error, at many ranks next to nothing, so quality at two ranks says nothing of others"
        )
    return ""


def _memory(watched: Sequence[Fact]) -> dict[str, list[str]]:
    """Names of variables that changed: to the same content on both ranks (``alike``), or not (``by_data``)."""
    first, *others = [one["changed"] for one in watched]
    names = sorted(set(first).union(*others))
    alike = [name for name in names if all(other.get(name) == first.get(name) for other in others)]
    return {"alike": alike, "by_data": [name for name in names if name not in alike]}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
