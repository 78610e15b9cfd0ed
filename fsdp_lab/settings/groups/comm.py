"""What ranks send each other, and how it is compressed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsdp_lab.settings.reading import method_flags
from fsdp_lab.settings.reading.fields import ConfigError, Settings, setting
from fsdp_lab.settings.reading.specs import specs_of


@dataclass(frozen=True)
class CommConfig(Settings):
    """What is compressed on its way between ranks, and how."""

    comm_compress: str = setting(
        "none",
        'gradient compression method, also with settings, "topk ratio=0.01", and with the parameters\' method, "int4 '
        'hadamard + delta" (none: stock FSDP2, no hook at all)',
        also="method",
        method=True,
    )
    comm_config_json: dict[str, Any] = setting({}, "the method's own settings")  # noqa: RUF009 - a new dict each
    param_compress: str = setting("none", "compression method of the parameter all-gather", method=True)
    param_config_json: dict[str, Any] = setting({}, "the parameter method's own settings")  # noqa: RUF009
    replica_compress: str = setting(
        "none",
        "dp_replicas with several ranks each (HSDP): compression method of the gradients' sum between replicas (none: "
        "that of comm_compress, inside of a replica and between them)",
        method=True,
    )
    comm_dtype: str = setting("fp32", "dtype that FSDP2 reduces gradients in", choices=("fp32", "bf16", "fp16"))
    fsdp_prefetch: int = setting(
        1, "CPU: gather the parameters of so many blocks ahead while one computes, also with none", at_least=0
    )
    fsdp_overlap_reduce: int = setting(
        2,
        "CPU: let the compressed reduce-scatters of so many blocks be under way while backward goes on (0: it waits "
        "for each)",
        at_least=0,
    )
    fsdp_reshard: bool = setting(True, "free the full parameters after forward, gather them again for backward")
    activation: str = setting(
        "none",
        "tp, pp: compression method of the activations that ranks exchange (none: torch's own collectives)",
        method=True,
    )
    activation_grad: str = setting(
        "none", "tp, pp: compression method of the gradients of these activations", method=True
    )
    optimizer_compress: str = setting(
        "none",
        "muon: compression method of the updates that ranks gather (none: as they are, in bfloat16, which loses "
        "nothing); demo, onebit_adam, ef21_muon, zero_one_adam: of what replicas exchange in place of gradients, to be "
        'given (their papers\': dct, signsgd, "topk ratio=0.1 values=nc", signsgd)',
        method=True,
    )
    optimizer_gather: str = setting(
        "none",
        "ef21_muon: compression method of the weights' moves on their way back from who keeps them (none: the weights, "
        "exactly)",
        method=True,
    )
    optimizer_exchange: str = setting(
        "auto",
        "muon: every rank's updates to all others (all_gather), or to one owner of each matrix, which alone works on "
        "it (owners); auto: the one that sends fewer bytes, where the numbers are the same",
        choices=("auto", "all_gather", "owners"),
    )
    optimizer_until_freeze: str = setting(
        "moves",
        "zero_one_adam: what replicas exchange by optimizer_compress until Adam's variance stays as it is: how far "
        "each has gone (moves, as its paper), or gradients, which enter the momentum (as its public code)",
        choices=("moves", "gradients"),
    )
    outer: str = setting(
        "none",
        "local steps: each replica (dp_replicas, or virtual_ranks) trains by itself, and they synchronise now and "
        "then, by their mean (local_sgd) or by an outer step with Nesterov momentum (diloco)",
        choices=("none", "local_sgd", "diloco"),
    )
    outer_every: int = setting(30, "outer: optimiser steps between two synchronisations", at_least=1)
    outer_compress: str = setting(
        "none",
        "outer: compression method of what a replica has learnt since the last one (none: torch's own all-reduce)",
        method=True,
    )
    outer_gather: str = setting(
        "none", "outer: compression method of the mean on its way back to the replicas (none: exact)", method=True
    )
    outer_exchange: str = setting(
        "auto",
        "outer: by way of each part's owner (reduce_scatter), or every replica's whole message to all others "
        "(all_gather); auto: the one that sends fewer bytes, as the numbers are the same",
        choices=("auto", "reduce_scatter", "all_gather"),
    )
    outer_learning_rate: float | None = setting(
        None, "outer: rate of the outer step; none: 1 for local_sgd, 0.7 for diloco", above=0
    )
    outer_momentum: float | None = setting(
        None, "outer: Nesterov momentum of diloco's outer step; none: 0.9", at_least=0, below=1
    )
    outer_fragments: int = setting(
        1,
        "outer: parts of the model that are synchronised in turn, each every outer_every steps",
        at_least=1,
    )
    outer_overlap: int = setting(
        0, "outer: optimiser steps between the sending of a part and its use, while replicas train on", at_least=0
    )
    outer_mixing: float = setting(
        0.0, "outer_overlap: share of a replica's own weights in those that it goes on with", at_least=0, below=1
    )
    outer_by_gradient: str = setting(
        "none",
        "outer: parameters that a replica does not move by itself, but by the mean of all replicas' gradients: "
        "embeddings and what predicts tokens (embeddings), all (as larger batches do), or nothing",
        choices=("none", "embeddings", "all"),
    )
    outer_gradient_every: int | None = setting(
        None, "outer_by_gradient: optimiser steps between two such means; none: outer_every", at_least=1
    )
    outer_gradient_compress: str = setting(
        "none",
        "outer_by_gradient embeddings: compression method of these gradients, by way of owners (none: outer_compress)",
        method=True,
    )
    outer_gradient_rate: float | None = setting(
        None,
        "outer_by_gradient: their learning rate, in multiples of learning_rate; none: the square root of those steps",
        above=0,
    )
    fsdp_keep_frozen: bool = setting(
        False, "lora_rank: send the model's own weights once, exactly, and keep them whole on every rank"
    )
    system: str = setting(
        "none",
        "a published system whose settings of communication are meant (sdp4bit, zero++, diloco, ...: fsdp-lab "
        "systems); what is given beside it must not contradict it",
    )

    @property
    def outer_step(self) -> tuple[float, float]:
        """Rate and momentum of the outer step: those of the kind of local steps where no flag says another."""
        rate, momentum = (0.7, 0.9) if self.outer == "diloco" else (1.0, 0.0)
        return (
            rate if self.outer_learning_rate is None else self.outer_learning_rate,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    @property
    def gradient_method(self) -> str | None:
        """What carries the gradients of what goes by them; None: what carries all else between replicas."""
        return None if self.outer_gradient_compress == "none" else self.outer_gradient_compress

    @property
    def rate_by_gradient(self) -> float:
        """What goes by its gradients learns so many times as fast: Adam's rate grows with the root of the batch."""
        steps = self.outer_gradient_every or self.outer_every
        return math.sqrt(steps) if self.outer_gradient_rate is None else self.outer_gradient_rate

    @classmethod
    def said(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Labels taken apart: the methods' names stay in comm_compress and param_compress, settings go beside them.

        A system is replaced by its settings: ``system`` itself is none in every group that was built.
        """
        separate, complaints = method_flags.spelled_out(values)
        if complaints:
            raise ConfigError(complaints)
        return separate

    def __post_init__(self) -> None:
        given = {spec.name: getattr(self, spec.name) for spec in specs_of(type(self))}
        changed = {spec.name for spec in specs_of(type(self)) if given[spec.name] != spec.default}
        for name, value in self.said({name: given[name] for name in changed}).items():
            object.__setattr__(self, name, value)
        if isinstance(self.system, str):  # else the check of types refuses it
            object.__setattr__(self, "system", "none")
        super().__post_init__()
