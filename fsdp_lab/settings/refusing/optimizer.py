"""Settings of the optimizer that exclude others."""

from __future__ import annotations

from fsdp_lab.settings.groups import CommConfig, LoraConfig, ModelConfig, OptimConfig, ParallelConfig


def of_optimizer(
    optim: OptimConfig, comm: CommConfig, parallel: ParallelConfig, model: ModelConfig, lora: LoraConfig
) -> list[str]:
    """A complaint for each setting that the optimizer cannot be had with, or that is of another optimizer."""
    has_muon = optim.optimizer == "muon"
    wrong = {
        "muon_momentum: adamw has adam_beta1; give optimizer muon, or leave it out": (
            not has_muon and optim.muon_momentum is not None
        ),
        "optimizer_compress: adamw gathers nothing; give optimizer muon, or leave it out": (
            not has_muon and comm.optimizer_compress != "none"
        ),
        "optimizer_exchange: adamw exchanges nothing; give optimizer muon, or leave it out": (
            not has_muon and comm.optimizer_exchange != "auto"
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
