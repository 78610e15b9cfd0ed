"""From the settings to a model on its ranks, however these are arranged."""

from __future__ import annotations

import math

from torch.distributed.fsdp import FSDPModule

import comm_compress as cc
from fsdp_lab.models import build_model as build_sharded
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.models.build import ModelPlan, plan_model, shard
from fsdp_lab.models.model import Model
from fsdp_lab.models.operators import blocks, install
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.division.shares import counts_for_all
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.local_steps import reduces_no_gradients
from fsdp_lab.parallel.model import ParallelModel
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.models.divided import Divided
from fsdp_lab.parallel.objectives import Pipelined, Replicated
from fsdp_lab.parallel.pipeline import Pipeline
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig


def build_model(config: TrainConfig, ranks: Ranks, vocab_size: int, eot_id: int, pad_id: int | None = None) -> Model:
    """The model of ``config`` on ``ranks``: sharded by FSDP2 alone, or as their `ParallelDims` says.

    It is divided and sharded before it has weights. Raises ValueError as `fsdp_lab.models.build_model` does, and for a
    model that cannot be divided so.
    """
    if ranks.parallel_dims is None:
        return build_sharded(config, ranks, vocab_size, eot_id, pad_id)
    plan = plan_model(config, ranks, vocab_size, eot_id, pad_id)
    if not config.parallel.is_divided:
        whole = objective(plan.sketch.model)
        install(whole, plan.operators)
        module = _distributed(whole, plan, config, ranks)
        are_local = reduces_no_gradients(config)
        return ParallelModel(module, *plan.described, ranks=ranks, sketch=plan.sketch, are_local=are_local)
    wiring = _wiring(config, ranks)
    divided = divided_model(plan.sketch.model, wiring)
    plan.sketch.pieces = divided.division.pieces
    recomputes = plan.operators["checkpointing"] == "blocks"
    blocks.install(plan.sketch.model, recomputes, compile=False, contexts=wiring.activations.recomputation)
    pipeline = _pipeline(divided, config, ranks) if config.parallel.pp > 1 else None
    module = _distributed(divided if pipeline is None else Pipelined(pipeline), plan, config, ranks)
    _check_places(wiring, ranks)
    return ParallelModel(module, *plan.described, ranks=ranks, sketch=plan.sketch, divided=divided, pipeline=pipeline)


def _distributed(module: Objective, plan: ModelPlan, config: TrainConfig, ranks: Ranks) -> Objective:
    """``module`` with its weights, sharded or replicated over the data-parallel ranks, or alone on this rank.

    Over the ranks of its replica alone, where replicas reduce no gradients.
    """
    mesh, dims = ranks.mesh, ranks.parallel_dims
    assert dims is not None
    replicas = 1 if reduces_no_gradients(config) else dims.replicas
    if dims.pp > 1 and plan.param_dtype != "fp32":
        raise ValueError("mixed_precision: the stages of a pipeline compute in float32; give no")
    if dims.pp == 1 and (dims.shards > 1 or plan.param_dtype != "fp32" or config.model.cpu_offload):
        shard(module, config, mesh["replicas", "shards"] if replicas > 1 else mesh["shards"], plan.param_dtype)
    plan.realise(module, ranks.device, offloaded=config.model.cpu_offload)
    if config.parallel.is_divided or isinstance(module, FSDPModule):
        return module
    if replicas > 1:
        return Replicated(module, mesh["replicas"].get_group())
    return module


def _wiring(config: TrainConfig, ranks: Ranks) -> Wiring:
    """What the ranks of one model exchange, and by which methods. ValueError begins with the setting's name."""
    parallel, comm = config.parallel, config.comm
    carried = cc.parallel.Activations(
        None if comm.activation == "none" else comm.activation,
        None if comm.activation_grad == "none" else comm.activation_grad,
        seed=config.run.seed,
        count_stock=True,
    )
    exact = cc.parallel.Activations(count_stock=True)
    shares = parallel.share_list if parallel.tp > 1 else [1.0]
    return Wiring(LAYOUTS[parallel.layout], ranks.mesh["tp"].get_group(), shares, carried, exact)


def _pipeline(model: Divided, config: TrainConfig, ranks: Ranks) -> Pipeline:
    parallel, batch = config.parallel, config.optim.batch_size
    assert batch is not None, "resolved"
    assert config.data.max_length is not None, "resolved"
    most = 4 * parallel.pp
    micro_batches = parallel.pp_micro_batches or max(n for n in range(1, most + 1) if batch % n == 0)
    if batch % micro_batches:
        raise ValueError(
            f"pp_micro_batches: a batch of {batch} sequences does not make {micro_batches} micro-batches of one size"
        )
    pipeline = Pipeline(
        model,
        parallel.pp_schedule,
        micro_batches,
        ranks.mesh["pp"].get_group(),
        model.wiring.activations,
        config.data.max_length,
        None if parallel.tp > 1 or parallel.shares is None else _blocks_of_stages(model, parallel.share_list),
        ranks.device,
    )
    if parallel.pp_schedule != "gpipe" and micro_batches < pipeline.num_stages:
        raise ValueError(
            f"batch_size, pp_micro_batches: {parallel.pp_schedule} keeps {pipeline.num_stages} stages busy with as "
            f"many micro-batches or more, and {batch} sequences make {micro_batches}; give a batch_size of "
            f"{pipeline.num_stages * math.ceil(batch / pipeline.num_stages)}, or gpipe"
        )
    return pipeline


def _blocks_of_stages(model: Divided, shares: list[float]) -> list[int]:
    return counts_for_all("blocks", len(model.blocks), shares)


def _check_places(wiring: Wiring, ranks: Ranks) -> None:
    """ValueError when a method's ``layers`` name no place on any rank; collective."""
    places = {name for names in ranks.gather(list(wiring.activations.places)) for name in names}
    wiring.activations.check_names(places)
