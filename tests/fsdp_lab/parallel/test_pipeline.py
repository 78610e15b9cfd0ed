"""A model in pipeline stages, also of divided blocks, is the whole model: loss and every gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import comm_compress as cc
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.pipeline import SCHEDULES, Pipeline, stages_of
from fsdp_lab.settings.refusing.here import torch_version
from tests.distributed import run_ranks
from tests.fsdp_lab.parallel.models.test_divided import TOLERANCE, batch, fresh

LENGTH, BLOCKS = 16, 4


def differences(
    family: str,
    schedule: str,
    tp: int = 1,
    layout: str = "tp",
    tied: bool = True,
    stage_blocks: Sequence[int] | None = None,
) -> list[str]:
    """What is wrong on this rank: parameters whose gradient is not (its piece of) the whole model's, the loss."""
    torch.set_num_threads(1)
    tokens = batch(family, LENGTH, rows=4)
    serial = objective(fresh(family, blocks=BLOCKS))
    expected = serial(tokens) / serial.num_targets(tokens)
    expected.backward()
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("pp", "tp"))
    exact = cc.parallel.Activations()
    wiring = Wiring(LAYOUTS[layout], mesh["tp"].get_group(), [1] * tp, exact, cc.parallel.Activations())
    model = divided_model(fresh(family, blocks=BLOCKS), wiring)
    pipeline = Pipeline(model, schedule, 2, mesh["pp"].get_group(), cc.parallel.Activations(), LENGTH, stage_blocks)
    loss = pipeline.step(tokens)
    if tied:
        pipeline.reduce_tied()
    cc.parallel.ReplicatedGradients(model.replicated(), wiring.group).reduce()
    wrong = []
    losses = (loss, pipeline.evaluate(tokens) / serial.num_targets(tokens))
    wrong += [f"loss {one.item()}, not {expected.item()}" for one in losses if abs(one - expected) > 1e-5]
    whole = dict(serial.hf.named_parameters(remove_duplicate=False))
    named = dict(model.hf.named_parameters())
    assert named, "every rank has a part"
    for name, p in named.items():
        piece = model.division.pieces.get(name)
        wanted = whole[name].grad if piece is None else piece.take(whole[name].grad)
        if p.grad is None or not (p.grad - wanted).abs().max() < TOLERANCE[torch.float32]:
            wrong.append(name)
    return wrong


def of_all_schedules(family: str) -> dict[str, Any]:
    here = [name for name in SCHEDULES if name != "zbv" or torch_version() >= (2, 13)]  # refused before, on a CPU
    equal: dict[str, Any] = {schedule: differences(family, schedule) for schedule in here}
    unequal = {f"{s} {b}": differences(family, s, stage_blocks=b) for s, b in (("1f1b", [3, 1]), ("gpipe", [1, 3]))}
    return equal | unequal


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_every_schedule_gives_the_whole_models_gradients(family: str) -> None:
    for found in run_ranks(2, of_all_schedules, family):
        assert not any(found.values()), found


def of_divided_blocks() -> dict[str, list[str]]:
    return {
        layout: differences("gpt2", schedule, 2, layout) for layout, schedule in (("tp", "1f1b"), ("galaxy", "gpipe"))
    }


def test_stages_of_divided_blocks() -> None:
    for found in run_ranks(4, of_divided_blocks):
        assert not any(found.values()), found


def test_a_shared_weight_that_is_not_summed_is_noticed() -> None:
    first, last = run_ranks(2, differences, "gpt2", "gpipe", 1, "tp", False)
    assert (first, last) == (["transformer.wte.weight"], ["lm_head.weight"])


def test_every_stage_is_somebodys() -> None:
    for schedule, ranks in product(SCHEDULES, (2, 3, 4)):
        owned = [stage for rank in range(ranks) for stage in stages_of(schedule, rank, ranks)]
        assert sorted(owned) == list(range(len(owned)))


def refusals() -> list[str]:
    wiring = Wiring(LAYOUTS["tp"], dist.new_group([0]), [1], cc.parallel.Activations(), cc.parallel.Activations())
    group, activations = dist.group.WORLD, cc.parallel.Activations()
    pipeline = Pipeline(divided_model(fresh("gpt2"), wiring), "gpipe", 2, group, activations, LENGTH)
    with pytest.raises(ValueError, match="micro-batches") as uneven:
        pipeline.step(batch("gpt2", LENGTH))
    wiring = Wiring(LAYOUTS["tp"], wiring.group, [1], cc.parallel.Activations(), cc.parallel.Activations())
    with pytest.raises(ValueError, match="blocks") as few:
        Pipeline(divided_model(fresh("gpt2", blocks=1), wiring), "zbv", 2, group, activations, LENGTH)
    wiring = Wiring(LAYOUTS["tp"], wiring.group, [1], cc.parallel.Activations(), cc.parallel.Activations())
    with pytest.raises(ValueError, match="stage_blocks") as wrong:
        Pipeline(divided_model(fresh("gpt2"), wiring), "gpipe", 2, group, activations, LENGTH, [1])
    return [str(uneven.value), str(few.value), str(wrong.value)]


def test_what_cannot_be_a_pipeline_is_refused() -> None:
    uneven, few, wrong = run_ranks(1, refusals)[0]
    assert uneven == "pipeline: 3 sequences do not make 2 micro-batches of one size"
    assert "of 1 blocks" in few
    assert wrong == "stage_blocks: got [1], wants 1 numbers above 0 that make 2 blocks"
