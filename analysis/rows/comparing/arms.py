"""One way to communicate, as the settings of a row give it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from analysis.rows.comparing.canonical import canonical
from analysis.rows.comparing.setting_roles import arm_settings, training_settings
from comm_compress.labels import Method, arm_label, label, parse_arm, parse_label, spelled_out, trained_label
from fsdp_lab.settings.user_errors import printable

# the settings of communication that an `Arm` has a field for; others of a row are its ``further`` ones
NAMED = (
    "comm_compress",
    "comm_config_json",
    "param_compress",
    "param_config_json",
    "comm_dtype",
    "fsdp_prefetch",
    "fsdp_reshard",
    "activation",
    "activation_grad",
    "outer",
    "outer_every",
    "outer_compress",
    "outer_gather",
    "optimizer_compress",
)


PLAIN = ("none", "identity")  # what goes over the wire as it is


@dataclass(frozen=True)
class Arm:
    """One way to communicate. ``*_settings`` are canonical JSON. None: the row is older than the setting.

    ``further`` holds other settings of communication by name, values as canonical JSON, where they are not the default.
    ``training`` is like it: what moves the weights, where a comparison is across optimizers (`setting_roles.TRAINING`).
    ``name`` is what to call the arm instead of naming all its settings (`statistics.names`); arms are equal whatever it
    is."""

    gradients: str
    gradient_settings: str = "{}"
    parameters: str = "none"
    parameter_settings: str = "{}"
    comm_dtype: str = "fp32"
    prefetch: int | None = None
    reshard: bool | None = None
    activations: str = "none"
    activation_gradients: str = "none"
    outer: str = "none"
    outer_every: int | None = None
    outer_method: str = "none"
    outer_gather: str = "none"
    optimizer: str = "none"
    further: tuple[tuple[str, str], ...] = ()
    training: tuple[tuple[str, str], ...] = ()
    name: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, row: Mapping[str, Any], across_training: bool = False) -> Arm:
        """The arm of a row, from its ``config``; ``across_training``: what moves the weights is a part of it."""
        config = row["config"]
        return cls(
            config.get("comm_compress") or row["compress_method"],
            canonical(config.get("comm_config_json", row.get("compress_config")) or {}),
            config.get("param_compress") or row.get("param_compress_method") or "none",
            canonical(config.get("param_config_json", row.get("param_compress_config")) or {}),
            config.get("comm_dtype") or row.get("comm_dtype") or "fp32",
            config.get("fsdp_prefetch"),
            config.get("fsdp_reshard"),
            config.get("activation") or "none",
            config.get("activation_grad") or "none",
            *_local_steps(config),
            config.get("optimizer_compress") or "none",
            further=_further(row),
            training=_training(row) if across_training else (),
        )

    @cached_property
    def label(self) -> str:
        """The arm as a text: ``int4 hadamard + delta``.

        Parameters are named when they are compressed, dtypes when they are not float32."""
        if self.name is not None:
            return self.name
        text = arm_label(
            label(self.gradients, json.loads(self.gradient_settings)),
            label(self.parameters, json.loads(self.parameter_settings)),
            reduced_in=self.comm_dtype,
            prefetch=1 if self.prefetch is None else self.prefetch,
            reshard=self.reshard is not False,
            activations=self.activations,
            activation_gradients=self.activation_gradients,
            outer=self.outer,
            outer_every=self.outer_every or 0,
            outer_method=self.outer_method,
            outer_gather=self.outer_gather,
            optimizer=self.optimizer,
        )
        further = ", ".join([text, *(f"{name}={_shown(value)}" for name, value in self.further)])
        return printable(trained_label(further, {name: json.loads(value) for name, value in self.training}))

    @cached_property
    def family(self) -> str:
        """What decides the arm's colour: the method of the gradients or, if those are sent as they are, of the
        parameters or, if those are, too, of the activations and their gradients, of what local steps give, or of what
        the optimizer gathers. Across optimizers it is the optimizer, or the kind of local steps, if there is one."""
        if self.training and (self.moved_by != "adamw" or self.takes_local_steps):
            return self.moved_by if self.moved_by != "adamw" else self.outer
        if self.compresses_gradients:
            return self.gradients
        if self.compresses_parameters:
            return self.parameters
        further = (self.activations, self.activation_gradients, self.outer_method, self.outer_gather, self.optimizer)
        methods = (parse_label(text).name for text in further)
        return next((name for name in methods if name not in PLAIN), self.gradients)

    @property
    def compresses_gradients(self) -> bool:
        """Are gradients sent in another form than FSDP2 handed them over?"""
        return self.gradients not in PLAIN

    @property
    def compresses_parameters(self) -> bool:
        """Are parameters sent in another form than FSDP2 handed them over?"""
        return self.parameters not in PLAIN

    @property
    def compresses_activations(self) -> bool:
        """Are activations or their gradients sent in another form than the layers made them?"""
        return not {self.activations, self.activation_gradients} <= set(PLAIN)

    @property
    def takes_local_steps(self) -> bool:
        """Do replicas train by themselves, and so send less, whatever the method?"""
        return self.outer != "none"

    @property
    def compresses_optimizer(self) -> bool:
        """Is what the optimizer gathers sent in another form than it computes in?"""
        return self.optimizer not in PLAIN

    @property
    def moved_by(self) -> str:
        """The optimizer, where a comparison is across optimizers; else AdamW's name, whatever it was."""
        return str(json.loads(dict(self.training).get("optimizer", '"adamw"')))

    @property
    def sends_less(self) -> bool:
        """Is anything compressed, left out between synchronisations, or exchanged in place of gradients?"""
        compresses = self.compresses_gradients or self.compresses_parameters or self.compresses_activations
        replaces = self.moved_by not in ("adamw", "muon")
        return compresses or self.compresses_optimizer or self.takes_local_steps or replaces

    @property
    def is_stock(self) -> bool:
        """Is everything sent at every step by torch's own collectives, without a hook of ours?"""
        methods = {self.gradients, self.parameters, self.activations, self.activation_gradients, self.optimizer}
        return methods == {"none"} and not self.takes_local_steps


def spelling(text: str) -> str:
    """The label of the arm that ``text`` describes, however it is written; ``text`` itself where it describes none."""
    try:
        said = parse_arm(text)
    except ValueError:
        return text
    parameters = said.parameters or Method("none", {})
    own, other = (canonical(spelled_out(settings)) for settings in (said.gradients.settings, parameters.settings))
    further: dict[str, Any] = {
        "comm_dtype": said.reduced_in,
        "prefetch": said.prefetch,
        "reshard": said.reshard,
        "activations": said.activations,
        "activation_gradients": said.activation_gradients,
        "outer": said.outer,
        "outer_every": said.outer_every,
        "outer_method": said.outer_method,
        "outer_gather": said.outer_gather,
        "optimizer": said.optimizer,
    }
    given = {name: value for name, value in further.items() if value is not None}
    return Arm(said.gradients.name, own, parameters.name, other, **given).label


def _further(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    config, defaults = row["config"], arm_settings(row)
    names = sorted(name for name in defaults if name not in NAMED and name in config)
    return tuple((name, canonical(config[name])) for name in names if config[name] != defaults[name])


def _shown(text: str) -> str:
    """A value as labels have it: text without quotes, all else as JSON."""
    value = json.loads(text)
    return value if isinstance(value, str) else text


def _training(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, canonical(value)) for name, value in training_settings(row).items()))


def _local_steps(config: Mapping[str, Any]) -> tuple[str, int | None, str, str]:
    """Kind, number and methods of local steps: of no meaning, whatever the row says, where there are none."""
    kind = config.get("outer") or "none"
    if kind == "none":
        return "none", None, "none", "none"
    return kind, config.get("outer_every"), config.get("outer_compress") or "none", config.get("outer_gather") or "none"
