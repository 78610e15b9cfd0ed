"""Settings that do not go together."""

from __future__ import annotations

from fsdp_lab.config import DataConfig, TrainConfig
from fsdp_lab.data.shares import shares
from fsdp_lab.settings import ConfigError


def check_virtual(config: TrainConfig, has_gpu: bool) -> None:
    """ConfigError naming every setting that virtual ranks have no use for or cannot do."""
    if not config.run.virtual_ranks:
        return
    wrong = {
        "virtual_ranks: 1 virtual rank is a real one; give 2 or more, or 0": config.run.virtual_ranks == 1,
        "mixed_precision: virtual ranks compute in float32; give no": config.model.mixed_precision == "bf16"
        or (config.model.mixed_precision == "auto" and has_gpu),
        "comm_dtype: virtual ranks reduce in float32; give fp32": config.comm.comm_dtype != "fp32",
        "compile: not with virtual ranks, which change the parameters under the compiled blocks": config.model.compile,
        "profile: a step of virtual ranks takes no rank's time; leave it out": config.run.profile,
        "ppl_at_s: a step of virtual ranks takes no rank's time; leave it out": config.run.ppl_at_s is not None,
    }
    if complaints := [complaint for complaint, is_so in wrong.items() if is_so]:
        raise ConfigError(complaints)


def check_data(data: DataConfig) -> None:
    """ConfigError for two answers to where the text comes from; DataError for weights that are none."""
    if data.data_mix and data.data_path is not None:
        raise ConfigError(["data_path, data_mix: give one of them (a mix names its own paths)"])
    shares(data.data_mix)
