"""What is timed alone is the real layout's own work: the same shapes, all parts, and the memory that it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.planning.job import Job
from fsdp_lab.parallel.planning.measuring.models import random_batch, whole_model
from fsdp_lab.parallel.planning.measuring.stopwatch import Stopwatch, part_of, step_times
from fsdp_lab.parallel.planning.steps.memory import layout_memory, saved_by_block
from fsdp_lab.parallel.planning.steps.work import PARTS, counts_by
from tests.distributed import run_ranks

SHARES = (0.5, 0.7)


def fractions(job: Job, layout: str, share: float) -> dict[str, float]:
    return {what: each[0] / sum(each) for what, each in counts_by(job, layout, [share, 1 - share]).items()}


def saved_bytes(model: Any, batch: Tensor) -> int:
    """What forward keeps for backward, without parameters; each storage once."""
    kept: dict[int, int] = {}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in parameters:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = model(batch)
    assert loss.requires_grad
    return sum(kept.values())


def of_all_layouts(preset: str) -> dict[str, Any]:
    """Times, and what one block more keeps against the estimate."""
    torch.set_num_threads(1)
    alone: Any = dist.group.WORLD
    job, found = Job.of(preset, 2, 48), {}
    for layout in LAYOUTS:
        for share in SHARES:
            kept = []
            for layers in (2, 3):
                model = divided_model(whole_model(preset, layers), Stopwatch(layout, share, alone))
                kept.append(saved_bytes(model, random_batch(preset, 2, 48)))
            times = step_times(model, random_batch(preset, 2, 48), 1)
            estimate = saved_by_block(job, layout, fractions(job, layout, share))
            found[f"{layout} {share:.2f}"] = (times, (kept[1] - kept[0]) / estimate)
    return found


@pytest.mark.parametrize("preset", ["gpt2-mini", "bert-mini", "llama-mini"])
def test_all_parts_are_timed_and_memory_is_as_estimated(preset: str) -> None:
    (found,) = run_ranks(1, of_all_layouts, preset)
    for name, (times, kept) in found.items():
        layout = name.split()[0]
        assert times.keys() == PARTS[layout].keys()
        assert all(seconds > 0 for part, seconds in times.items() if part != "ends")
        assert 0.7 < kept < 1.4, (name, kept)


def test_parts_between_marks() -> None:
    assert part_of("h.0.attention.in forward", "h.0.attention.out forward") == "attention"
    assert part_of("h.0.mlp.out backward", "h.0.mlp.in backward") == "mlp"
    assert part_of("h.0.attention.out forward", "h.0.mlp.in forward") == "rest"
    assert part_of("h.1.attention.in backward", "h.0.mlp.out backward") == "rest"
    assert part_of("h.0.attention.keys forward", "h.1.attention.keys forward") == "rest"
    assert part_of("h.3.mlp.out forward", "head forward") == ""
    assert part_of("h.3.mlp.out forward", "h.3.mlp.out backward") == ""


def test_memory_shrinks_with_the_share() -> None:
    job = Job.of("gpt2-mini", 4, 128)
    for layout in LAYOUTS:
        sizes = [layout_memory(job, layout, fractions(job, layout, share)) for share in (0.25, 0.5, 0.75)]
        assert sizes == sorted(sizes)
        assert sizes[0] < sizes[-1]
