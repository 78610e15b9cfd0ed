"""The compressors that the settings of communication ask for, and complaints about methods that cannot be built."""

from __future__ import annotations

from functools import partial
from typing import Any

import comm_compress as cc
from fsdp_lab.settings.groups import BETWEEN_REPLICAS, CommConfig


def check_compression(config: CommConfig, optimizer: str | None = None) -> None:
    """Raises ValueError when the method or the settings of either direction are wrong; cheap, as no model is built."""
    if complaints := complaints_about(config, optimizer):
        raise ValueError("; ".join(complaints))


def complaints_about(config: CommConfig, optimizer: str | None = None) -> list[str]:
    """One complaint for each direction whose method or settings are wrong; ``optimizer``: who exchanges, if known."""
    complaints = []
    of_optimizer = partial(check_optimizer, optimizer=optimizer)
    for build in (of_gradients, of_parameters, of_replicas, of_activations, check_outer, of_optimizer):
        try:
            build(config)
        except ValueError as error:
            complaints.append(str(error))
    return complaints


def of_gradients(config: CommConfig) -> cc.Compressor | None:
    """The compressor of the gradients; None: stock FSDP2. Raises ValueError that begins with the flag's name."""
    made = _make("comm_compress", config.comm_compress, config.comm_config_json)
    if made is not None and not made.traits.for_gradients:
        raise ValueError(f"comm_compress: {made.name} is for parameters only; use it as param_compress")
    return made


def of_parameters(config: CommConfig) -> cc.Compressor | None:
    """The compressor of the parameters; None: stock FSDP2. Raises ValueError that begins with the flag's name."""
    made = _make("param_compress", config.param_compress, config.param_config_json)
    if made is not None and not made.traits.for_parameters:
        fitting = ", ".join(
            name for name in cc.available()[1:] if (c := cc.make(name)) is not None and c.traits.for_parameters
        )
        raise ValueError(
            f"param_compress: {made.name} with these settings does not bring every parameter back, the same at every "
            f"gather; those that do: {fitting}"
        )
    return made


def of_replicas(config: CommConfig) -> cc.Compressor | None:
    """The compressor of the gradients' sum between replicas; None: that of the gradients.

    Raises ValueError that begins with the flag's name.
    """
    made = _make("replica_compress", *cc.labels.parse_label(config.replica_compress))
    if made is not None and not made.traits.for_gradients:
        raise ValueError(f"replica_compress: {made.name} is for parameters only")
    return made


def of_activations(config: CommConfig) -> cc.parallel.Activations | None:
    """What carries activations and their gradients, to be asked whether it can; None: torch's own collectives.

    Raises ValueError that begins with the flag's name.
    """
    carriers = {"activation": config.activation, "activation_grad": config.activation_grad}
    for flag, method in carriers.items():
        try:
            cc.parallel.Activations(method)
        except ValueError as error:
            raise ValueError(f"{flag}: {str(error).removeprefix('forward: ')}") from None
    return cc.parallel.Activations(config.activation, config.activation_grad)


def check_outer(config: CommConfig) -> None:
    """Raises ValueError, which begins with the flag's name, when a method cannot carry what replicas have learnt."""
    is_everywhere = config.outer_exchange == "all_gather"
    has_no_way_back = is_everywhere or config.outer_compress == "none"
    gather = None if has_no_way_back else config.outer_gather
    try:
        cc.outer.check(
            config.outer_compress,
            gather,
            "all_gather" if is_everywhere else "reduce_scatter",
            gradient_method=config.gradient_method,
        )
    except ValueError as error:
        argument, mark, why = str(error).partition(": ")
        flags = {"method": "outer_compress", "gradient_method": "outer_gradient_compress"}
        flags |= {"all_gather": "outer_gather", "exchange": "outer_exchange"}
        flag = flags.get(argument.split()[0]) if mark else None
        raise ValueError(f"outer_compress: {error}" if flag is None else f"{flag}: {why}") from None


def check_optimizer(config: CommConfig, optimizer: str | None = None) -> None:
    """Raises ValueError, which begins with the flag's name, when a method cannot carry what the optimizer exchanges.

    ``optimizer`` None: any of those that exchange something.
    """
    if config.optimizer_gather != "none":
        try:
            cc.optim.check_message(config.optimizer_gather, of_fixed_size=True)
        except ValueError as error:
            raise ValueError(f"optimizer_gather: {str(error).removeprefix('method: ')}") from None
    method = config.optimizer_compress
    if method != "none" and optimizer != "muon":
        try:
            return cc.optim.check_message(method, of_fixed_size=optimizer == "ef21_muon")
        except ValueError as error:
            if optimizer in BETWEEN_REPLICAS:
                raise ValueError(f"optimizer_compress: {str(error).removeprefix('method: ')}") from None
    try:
        cc.optim.check(config.optimizer_compress, config.optimizer_exchange)  # type: ignore[arg-type]  # a choice of it
    except ValueError as error:
        if str(error).startswith("exchange = "):
            raise ValueError(f"optimizer_exchange: {str(error).partition(': ')[2]}") from None
        raise ValueError(f"optimizer_compress: {str(error).removeprefix('method: ')}") from None


def _make(flag: str, name: str, settings: dict[str, Any]) -> cc.Compressor | None:
    try:
        return cc.make(name, settings)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None
