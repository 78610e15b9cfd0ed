"""Settings of a training run that exclude each other."""

from __future__ import annotations

from typing import Protocol

from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.conflicts.local_steps import of_local_steps
from fsdp_lab.settings.conflicts.optimizer import of_optimizer
from fsdp_lab.settings.conflicts.replicas import of_replicas
from fsdp_lab.settings.groups import (
    CommConfig,
    DataConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    RunConfig,
)
from fsdp_lab.settings.operators import named
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.shares import shares


class Groups(Protocol):
    """The groups of settings that can contradict each other."""

    @property
    def data(self) -> DataConfig:
        """The settings of the text to train on."""

    @property
    def model(self) -> ModelConfig:
        """The settings of the model, and of the arithmetic it runs in."""

    @property
    def parallel(self) -> ParallelConfig:
        """The settings of how the ranks share the work."""

    @property
    def lora(self) -> LoraConfig:
        """The settings of LoRA adapters."""

    @property
    def optim(self) -> OptimConfig:
        """The settings of the optimizer."""

    @property
    def comm(self) -> CommConfig:
        """The settings of the compression between ranks."""

    @property
    def run(self) -> RunConfig:
        """The settings of where the run writes, and when it evaluates, saves and gives up."""


def conflicts(config: Groups) -> list[str]:
    """A complaint for each pair of settings that exclude each other, and for a mix with unusable weights."""
    of_model = [*_of_model(config.model), *_of_lora(config), *_of_precision(config)]
    of_ranks = _of_parallel(config)
    of_ranks += of_local_steps(config.comm, config.parallel, config.model, config.lora, config.run)
    of_ranks += of_replicas(config.comm, config.optim, config.parallel)
    of_ranks += of_optimizer(config.optim, config.comm, config.parallel, config.model, config.lora, config.run)
    return [*_of_virtual_ranks(config), *of_ranks, *_of_data(config.data), *of_model]


def check_data(data: DataConfig) -> None:
    """Raises ConfigError if both data_path and data_mix are given, and for a mix with unusable weights."""
    if complaints := _of_data(data):
        raise ConfigError(complaints)


def _of_virtual_ranks(config: Groups) -> list[str]:
    """Complaints about settings that virtual ranks cannot use."""
    if not config.run.virtual_ranks:
        return []
    wrong = {
        "virtual_ranks: 1 virtual rank is a real one; give 2 or more, or 0": config.run.virtual_ranks == 1,
        "mixed_precision: virtual ranks compute in bfloat16 or float32; give bf16 or no": (
            config.model.mixed_precision == "fp16"
        ),
        "comm_dtype: virtual ranks reduce in float32; give fp32": config.comm.comm_dtype != "fp32",
        "cpu_offload: virtual ranks are not sharded; leave it out": config.model.cpu_offload,
        "compile: virtual ranks change the parameters under a compiled model; compile blocks": (
            named(config.model).get("compile") == "whole"
        ),
        "profile: a step of virtual ranks takes no rank's time; leave it out": config.run.profile,
        "ppl_at_s: a step of virtual ranks takes no rank's time; leave it out": config.run.ppl_at_s is not None,
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_parallel(config: Groups) -> list[str]:
    """Complaints about ranks that cannot share the work so."""
    parallel, model = config.parallel, config.model
    is_divided, shared = parallel.is_divided, parallel.tp if parallel.tp > 1 else parallel.pp
    wrong = {
        "virtual_ranks: virtual ranks are data-parallel ranks of FSDP2; leave out tp, pp and dp_replicas": (
            config.run.virtual_ranks > 0 and (is_divided or parallel.dp_replicas > 1)
        ),
        f"layout: {parallel.layout} divides blocks over tp ranks, and tp is 1": (
            parallel.tp == 1 and parallel.layout != "tp"
        ),
        f"shares: {parallel.shares} are not {shared} numbers, one for each of the ranks that divide the model": (
            len(parallel.share_list) != shared
        ),
        f"shares: {parallel.pp_schedule} has two stages a rank, of equal parts; leave it out": (
            parallel.shares is not None and parallel.tp == 1 and parallel.pp_schedule in ("interleaved", "zbv")
        ),
        "activation, activation_grad: no activations are exchanged; give tp or pp": (
            not is_divided and (config.comm.activation, config.comm.activation_grad) != ("none", "none")
        ),
        "compile: not with tp or pp, whose blocks exchange activations": is_divided and model.compile,
        "attention: blocks that are divided over ranks have torch's own attention; give sdpa": (
            is_divided and model.attention != "sdpa"
        ),
        "operators: a model that is divided over ranks has a loss and an attention of its own; only adamw and "
        "checkpointing can be chosen": is_divided and bool(model.operators.keys() - {"adamw", "checkpointing"}),
        "cpu_offload: what tp, pp and dp_replicas keep whole is not offloaded; leave it out": (
            model.cpu_offload and (is_divided or parallel.dp_replicas > 1)
        ),
        "mixed_precision: the stages of a pipeline compute in float32; give no": (
            parallel.pp > 1 and model.mixed_precision in ("bf16", "fp16")
        ),
        f"dp_replicas: {parallel.dp_replicas} copies of the weights on {parallel.dp} data-parallel ranks: give a "
        "divisor": (parallel.dp > 0 and parallel.dp % parallel.dp_replicas > 0),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_lora(config: Groups) -> list[str]:
    """Complaints about settings of adapters without adapters, and about those that virtual ranks cannot have."""
    lora, keeps, played = config.lora, config.comm.fsdp_keep_frozen, config.run.virtual_ranks
    if lora.lora_rank is None:
        given = {"lora_alpha": lora.lora_alpha, "lora_dropout": lora.lora_dropout, "lora_targets": lora.lora_targets}
        alone = ", ".join(name for name, value in given.items() if value)
        complaints = [f"{alone}: there are no adapters without lora_rank; give it"] if alone else []
        return complaints + ["fsdp_keep_frozen: no weight is frozen without lora_rank; leave it out"] * keeps
    parallel = config.parallel
    wrong = {
        "lora_rank: adapters are trained by data-parallel ranks of FSDP2; leave out tp, pp and dp_replicas": (
            parallel.is_divided or parallel.dp_replicas > 1
        ),
        "lora_dropout: each real rank drops inputs of its own, which virtual ranks cannot repeat; leave it out": (
            played and lora.lora_dropout > 0
        ),
        "fsdp_keep_frozen: not with virtual ranks, which count every gather; leave it out": played and keeps,
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_precision(config: Groups) -> list[str]:
    """A complaint about fp16 gradients that are reduced in fp16 without the loss scale that keeps them in range."""
    if config.model.mixed_precision != "fp16" or config.comm.comm_dtype != "fp16":
        return []
    if config.comm.comm_compress == "none":
        return []
    return [
        "comm_dtype: gradients of mixed_precision fp16 are compressed without their loss scale, which fp16 cannot "
        "hold; give fp32 or bf16"
    ]


def _of_data(data: DataConfig) -> list[str]:
    if data.data_format == "conversations" and (data.data_path is None or data.data_mix):
        return ["data_format: conversations come from one file; give data_path, and no data_mix"]
    if data.data_mix and data.data_path is not None:
        return ["data_path, data_mix: give one of them (a mix names its own paths)"]
    try:
        shares(data.data_mix)
    except DataError as error:
        return [str(error)]
    return []


def _of_model(model: ModelConfig) -> list[str]:
    if model.model_dir is not None and model.vocab_size is not None:
        return ["vocab_size: model_dir brings its own tokenizer; leave vocab_size out"]
    return []
