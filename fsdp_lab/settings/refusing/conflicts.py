"""Settings of a training run that exclude each other."""

from __future__ import annotations

from typing import Protocol

from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.groups import CommConfig, DataConfig, ModelConfig, RunConfig
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
    def comm(self) -> CommConfig:
        """The settings of the compression between ranks."""

    @property
    def run(self) -> RunConfig:
        """The settings of where the run writes, and when it evaluates, saves and gives up."""


def conflicts(config: Groups, has_gpu: bool) -> list[str]:
    """A complaint for each pair of settings that exclude each other, and for a mix with unusable weights."""
    of_model = [*_of_model(config.model), *_of_precision(config)]
    return [*_of_virtual_ranks(config, has_gpu), *_of_data(config.data), *of_model]


def check_data(data: DataConfig) -> None:
    """Raises ConfigError if both data_path and data_mix are given, and for a mix with unusable weights."""
    if complaints := _of_data(data):
        raise ConfigError(complaints)


def _of_virtual_ranks(config: Groups, has_gpu: bool) -> list[str]:
    """Complaints about settings that virtual ranks cannot use."""
    if not config.run.virtual_ranks:
        return []
    wrong = {
        "virtual_ranks: 1 virtual rank is a real one; give 2 or more, or 0": config.run.virtual_ranks == 1,
        "mixed_precision: virtual ranks compute in float32; give no": config.model.mixed_precision in ("bf16", "fp16")
        or (config.model.mixed_precision == "auto" and has_gpu),
        "comm_dtype: virtual ranks reduce in float32; give fp32": config.comm.comm_dtype != "fp32",
        "cpu_offload: virtual ranks are not sharded; leave it out": config.model.cpu_offload,
        "compile: not with virtual ranks, which change the parameters under the compiled blocks": _compiles(
            config.model, has_gpu
        ),
        "profile: a step of virtual ranks takes no rank's time; leave it out": config.run.profile,
        "ppl_at_s: a step of virtual ranks takes no rank's time; leave it out": config.run.ppl_at_s is not None,
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _compiles(model: ModelConfig, has_gpu: bool) -> bool:
    """Is torch.compile asked for, or may it be the best choice?"""
    asked = named(model).get("compile", model.operators.get("others"))
    return asked in ("blocks", "whole") or (asked == "best" and has_gpu)


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
