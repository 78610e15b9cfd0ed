"""Settings of the optimizer that exclude others."""

from __future__ import annotations

from fsdp_lab.settings.groups import (
    CommConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    RunConfig,
)

_METHODS = {
    "demo": "dct",
    "onebit_adam": "signsgd",
    "zero_one_adam": "signsgd",
    "ef21_muon": '"topk ratio=0.1 values=nc"',
}
"""What a paper sends by, of optimizers that send messages."""


def of_optimizer(
    optim: OptimConfig,
    comm: CommConfig,
    parallel: ParallelConfig,
    model: ModelConfig,
    lora: LoraConfig,
    run: RunConfig,
) -> list[str]:
    """A complaint for each setting that the optimizer cannot be had with, or that is of another optimizer."""
    complaints = [*_of_others(optim), *_of_muon(optim, comm, parallel, model, lora)]
    complaints += [*_of_ef21(optim, comm), *_of_zero_one(optim, comm)]
    return complaints + (_of_replicas(optim, comm, parallel, model, lora, run) if optim.is_between_replicas else [])


def _of_others(optim: OptimConfig) -> list[str]:
    """Complaints about settings of an optimizer that is not the one that was chosen."""
    chosen = optim.optimizer
    given = {"dion_rank": optim.dion_rank, "dion_learning_rate": optim.dion_learning_rate}
    given |= {"dion_momentum": optim.dion_momentum}
    of_dion = [name for name, value in given.items() if value is not None]
    given = {"adam_variance_scaler": optim.adam_variance_scaler, "adam_local_scaler": optim.adam_local_scaler}
    given |= {"adam_local_steps": optim.adam_local_steps}
    of_zero_one = [name for name, value in given.items() if value is not None]
    wrong = {
        f"demo_decay: {chosen} has no such momentum; give optimizer demo, or leave it out": (
            chosen != "demo" and optim.demo_decay is not None
        ),
        f"adam_freeze_after: {chosen} freezes nothing; give optimizer onebit_adam or zero_one_adam, or leave it out": (
            chosen not in ("onebit_adam", "zero_one_adam") and optim.adam_freeze_after is not None
        ),
        f"{', '.join(of_zero_one)}: {chosen} has no such intervals; give optimizer zero_one_adam, or leave it out": (
            chosen != "zero_one_adam" and bool(of_zero_one)
        ),
        f"{', '.join(of_dion)}: {chosen} has no such thing; give optimizer dion, or leave it out": (
            chosen != "dion" and bool(of_dion)
        ),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_replicas(
    optim: OptimConfig,
    comm: CommConfig,
    parallel: ParallelConfig,
    model: ModelConfig,
    lora: LoraConfig,
    run: RunConfig,
) -> list[str]:
    """Complaints about what an optimizer between replicas cannot be had with."""
    name, method = optim.optimizer, _METHODS.get(optim.optimizer)
    wrong = {
        f"optimizer: {name} is of several replicas; give dp_replicas 2 or more, or virtual_ranks": (
            parallel.dp_replicas == 1 and run.virtual_ranks == 0
        ),
        f"comm_compress, param_compress: virtual replicas of {name} are whole, and exchange what it says alone; leave "
        "them out": run.virtual_ranks > 0 and (comm.comm_compress, comm.param_compress) != ("none", "none"),
        f"lora_rank: replicas of {name} train whole weights; leave it out, or give adamw": (
            run.virtual_ranks > 0 and lora.lora_rank is not None
        ),
        f"optimizer: a replica of {name} is whole, or sharded by FSDP2; leave out tp and pp": parallel.is_divided,
        f"outer: {name} exchanges at every step; leave it out, or give adamw": comm.outer != "none",
        f"mixed_precision: each replica of {name} would have a loss scale of its own; give bf16 or no": (
            model.mixed_precision == "fp16"
        ),
        f"optimizer_compress: {name} sends nothing without a method; give {method}, which is its paper's": (
            method is not None and comm.optimizer_compress == "none"
        ),
        f"optimizer_compress: {name} sends factors as they are; leave it out": (
            method is None and comm.optimizer_compress not in ("none", "identity")
        ),
        f"optimizer_exchange: {name} has one way of its own; leave it out": comm.optimizer_exchange != "auto",
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_ef21(optim: OptimConfig, comm: CommConfig) -> list[str]:
    """A complaint about the way back, where nothing goes back."""
    if optim.optimizer == "ef21_muon" or comm.optimizer_gather == "none":
        return []
    return [f"optimizer_gather: {optim.optimizer} sends no weights back; give optimizer ef21_muon, or leave it out"]


def _of_zero_one(optim: OptimConfig, comm: CommConfig) -> list[str]:
    """A complaint about what is compressed until the variance stays, where it is not 0/1 Adam's."""
    if optim.optimizer == "zero_one_adam" or comm.optimizer_until_freeze == "moves":
        return []
    return [
        f"optimizer_until_freeze: {optim.optimizer} has no choice of what it compresses before a freeze; give "
        "optimizer zero_one_adam, or leave it out"
    ]


def _of_muon(
    optim: OptimConfig, comm: CommConfig, parallel: ParallelConfig, model: ModelConfig, lora: LoraConfig
) -> list[str]:
    """Complaints about settings of muon without it, and about what it cannot be had with."""
    has_muon, exchanges = optim.optimizer == "muon", optim.optimizer != "adamw"
    wrong = {
        f"muon_momentum: {optim.optimizer} has none; give optimizer muon or ef21_muon, or leave it out": (
            optim.optimizer not in ("muon", "ef21_muon") and optim.muon_momentum is not None
        ),
        "optimizer_compress: adamw gathers nothing; give optimizer muon, or of replicas (give dp_replicas 2 or more) "
        "demo, onebit_adam, dion, ef21_muon or zero_one_adam, or leave it out": (
            not exchanges and comm.optimizer_compress != "none"
        ),
        "optimizer_exchange: adamw exchanges nothing; give optimizer muon, or leave it out": (
            not exchanges and comm.optimizer_exchange != "auto"
        ),
        "optimizer: muon gathers the rows that FSDP2 has of whole matrices; leave out tp and pp, or give adamw": (
            has_muon and parallel.is_divided
        ),
        "optimizer: muon is for the blocks' own matrices, which adapters leave as they are; leave out lora_rank, or "
        "give adamw": (has_muon and lora.lora_rank is not None),
        "cpu_offload: muon's products would be the CPU's, and its gathers are of the device that trains; leave it "
        "out, or give adamw": (has_muon and model.cpu_offload),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]
