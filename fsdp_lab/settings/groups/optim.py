"""The optimizer of a run, and its schedule."""

from dataclasses import dataclass

from fsdp_lab.settings.reading.fields import Settings, setting

BETWEEN_REPLICAS = ("demo", "onebit_adam", "dion", "ef21_muon", "zero_one_adam")
"""Optimizers that exchange something of their own between the replicas of a model, instead of gradients."""


@dataclass(frozen=True)
class OptimConfig(Settings):
    """The optimizer, its schedule, and how much data one step sees."""

    batch_size: int | None = setting(None, "sequences per rank and micro-batch; none: the preset's", at_least=1)
    gradient_accumulation_steps: int = setting(1, "micro-batches per optimiser step", at_least=1)
    optimizer: str = setting(
        "adamw",
        "adamw; muon orthogonalises the updates of the blocks' matrices, for which ranks gather these, and leaves the "
        "rest to AdamW (docs/library/muon.md); of dp_replicas, which then exchange something else than gradients: "
        "demo, onebit_adam, dion, ef21_muon, zero_one_adam (docs/library/optimizers.md)",
        choices=("adamw", "muon", *BETWEEN_REPLICAS),
    )
    learning_rate: float | None = setting(None, "peak learning rate; none: the preset's", above=0)
    min_learning_rate_ratio: float = setting(0.1, "final learning rate as a share of the peak", at_least=0, at_most=1)
    weight_decay: float = setting(0.1, "decoupled weight decay of matrices", at_least=0)
    adam_beta1: float = setting(0.9, "decay of AdamW's first moment", at_least=0, below=1)
    adam_beta2: float = setting(0.95, "decay of AdamW's second moment", at_least=0, below=1)
    muon_momentum: float | None = setting(
        None, "muon, ef21_muon: decay of the momentum; none: 0.95", at_least=0, below=1
    )
    demo_decay: float | None = setting(
        None, "demo: what a step keeps of each replica's momentum; none: 0.999", at_least=0, below=1
    )
    adam_freeze_after: int | None = setting(
        None,
        "onebit_adam, zero_one_adam: optimiser steps after which Adam's variance stays as it is (until then "
        "onebit_adam is plain Adam); none: warmup_steps",
        at_least=1,
    )
    adam_variance_scaler: int | None = setting(
        None,
        "zero_one_adam: after so many updates of the variance the steps between two of them double; none: 16",
        at_least=1,
    )
    adam_local_scaler: int | None = setting(
        None,
        "zero_one_adam: after so many steps beyond adam_freeze_after the steps between two synchronisations double; "
        "none: 32678",
        at_least=1,
    )
    adam_local_steps: int | None = setting(
        None, "zero_one_adam: most steps between two synchronisations; none: 16", at_least=1
    )
    dion_rank: float | None = setting(
        None, "dion: rank of an update, as a share of the matrix's shorter side; none: 0.25", above=0, at_most=1
    )
    dion_learning_rate: float | None = setting(
        None, "dion: peak learning rate of the blocks' matrices; the rest has learning_rate; none: 0.02", above=0
    )
    dion_momentum: float | None = setting(
        None, "dion: what a step keeps of the part of a momentum that it used; none: 0.95", at_least=0, below=1
    )
    max_grad_norm: float = setting(1.0, "clip the global gradient norm to this; 0: no clipping", at_least=0)
    warmup_steps: int | None = setting(None, "optimiser steps of linear warm-up; none: the preset's", at_least=0)
    num_epochs: int | None = setting(None, "passes over the training split; none: 1", at_least=1)
    max_steps: int | None = setting(
        None, "stop after this many optimiser steps; none: the preset's, or after num_epochs if given", at_least=1
    )

    @property
    def is_between_replicas(self) -> bool:
        """Do replicas exchange what this optimizer says, and reduce no gradients?"""
        return self.optimizer in BETWEEN_REPLICAS
