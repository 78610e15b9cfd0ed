"""Rows sorted into comparisons: runs that differ in nothing but how they communicate, and in their seed.

Comparison   one setting (model, data, steps, world size, link, ...)
  ArmRuns    one way of communicating, at the best of the values that were tuned
    Row      one seed
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from analysis.rows.quality import loss_of
from analysis.rows.reading import Row
from analysis.rows.setting_roles import TRAINING, arm_settings, is_as_before, side_settings, training_settings
from comm_compress.labels import Method, arm_label, label, parse_arm, parse_label, spelled_out, trained_label
from fsdp_lab.settings.user_errors import printable

# the settings of communication that an `Arm` has a field for; others of a row are its ``further`` ones
_NAMED = (
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
_ADAPTERS = {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets"}
TUNED = ("learning_rate",)
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


@dataclass(frozen=True)
class Setting:
    """What must be equal within a comparison. ``config`` has settings by name, values as canonical JSON."""

    world_size: int
    link_rate: float | None
    link_delay_ms: float
    config: tuple[tuple[str, str], ...]

    @cached_property
    def label(self) -> str:
        """The setting as a text: ``gpt2-nano, 2 ranks, 300 steps, 200 Mbit/s``."""
        config = {name: json.loads(text) for name, text in self.config}
        target = config.get("target_dir")
        parts = [
            f"draft of {target}" if target else str(config.get("model_dir") or config.get("model") or "?"),
            f"{self.world_size}{' virtual' * bool(config.get('virtual_ranks'))} rank{'s' * (self.world_size > 1)}",
        ]
        ways = {"tp": config.get("layout") or "tp", "pp": "pp"}
        parts += [f"{name} {config[way]}" for way, name in ways.items() if (config.get(way) or 1) > 1]
        parts += [f"LoRA rank {config['lora_rank']}"] if config.get("lora_rank") else []
        parts += [f"{config['max_steps']} steps"] if config.get("max_steps") else []
        parts += [_rate(self.link_rate)] if self.link_rate else []
        parts += [f"{self.link_delay_ms:g} ms"] if self.link_delay_ms else []
        return printable(", ".join(parts))

    def differences(self, other: Setting) -> list[str]:
        """What differs from ``other``, a text for each setting: ``max_steps 300, not 200``."""
        mine, its = self._all, other._all
        names = sorted(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name))
        return [f"{n} {mine.get(n, '-')}, not {its.get(n, '-')}" for n in names]

    @cached_property
    def _all(self) -> dict[str, Any]:
        return dict(self.config) | {"world_size": self.world_size, "link": (self.link_rate, self.link_delay_ms)}


Values = tuple[tuple[str, Any], ...]  # tuned settings by name, values as canonical JSON


@dataclass(frozen=True)
class ArmRuns:
    """An arm's runs by seed, failed ones among them, with one choice of the tuned settings' values.

    ``tuned`` are the values chosen; ``trials`` the runs of every candidate by its values, the chosen one among them;
    ``repeated`` further rows of a seed that has its run already (retries, second starts)."""

    arm: Arm
    runs: dict[int, Row]
    tuned: dict[str, Any] = field(default_factory=dict)
    trials: dict[Values, dict[int, Row]] = field(default_factory=dict)
    repeated: list[Row] = field(default_factory=list)

    @property
    def candidates(self) -> int:
        """How many choices of the tuned settings' values were tried."""
        return max(len(self.trials), 1)

    @cached_property
    def ended_well(self) -> list[Row]:
        """Runs that finished with a finite loss, by seed."""
        return [row for _, row in sorted(self.runs.items()) if not failed(row)]

    @cached_property
    def failures(self) -> list[Row]:
        """Runs that failed or whose loss is not finite, by seed."""
        return [row for _, row in sorted(self.runs.items()) if failed(row)]

    @cached_property
    def losses(self) -> dict[int, float | None]:
        """Validation loss by seed, nats a token (of drafts: `quality.loss_of`). None: the run failed or diverged."""
        return {seed: None if failed(row) else loss_of(row) for seed, row in self.runs.items()}


@dataclass(frozen=True)
class Comparison:
    """The arms that were run in one setting. ``baseline`` is one of them; None: the setting has no such arm."""

    setting: Setting
    arms: list[ArmRuns]
    baseline: ArmRuns | None

    @property
    def rows(self) -> list[Row]:
        """The runs that are compared, arm by arm."""
        return [row for runs in self.arms for row in runs.runs.values()]

    @property
    def rivals(self) -> list[ArmRuns]:
        """All arms but the baseline."""
        return [runs for runs in self.arms if runs is not self.baseline]

    @cached_property
    def by_arm(self) -> dict[Arm, ArmRuns]:
        """The runs of each arm."""
        return {runs.arm: runs for runs in self.arms}

    @cached_property
    def by_label(self) -> dict[str, list[ArmRuns]]:
        """The runs of the arms by label. Two may have the same: one of rows that are older than a setting."""
        found: dict[str, list[ArmRuns]] = {}
        for runs in self.arms:
            found.setdefault(runs.arm.label, []).append(runs)
        return found

    def arm(self, label: str) -> ArmRuns:
        """The arm of that label. ValueError lists the labels that there are."""
        found = self.by_label.get(label) or self.by_label.get(spelling(label))
        if found:
            return found[0]
        there = ", ".join(repr(runs.arm.label) for runs in self.arms)
        raise ValueError(f"no arm {label!r} in the comparison ({self.setting.label}); it has {there}")


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


def titles(comparisons: Sequence[Comparison]) -> list[str]:
    """A title for every comparison: its setting's label and, where an earlier one has the same label, what differs from
    that."""
    first: dict[str, Setting] = {}
    said = []
    for setting in (comparison.setting for comparison in comparisons):
        twin = first.setdefault(setting.label, setting)
        unlike = ", ".join(setting.differences(twin))
        said.append(f"{setting.label} ({unlike})" if unlike else setting.label)
    return said


def failed(row: Mapping[str, Any]) -> bool:
    """Did the run end badly, or with a loss that is not finite?"""
    return row.get("status") != "ok" or loss_of(row) is None


def setting_of(row: Mapping[str, Any], tuned: Iterable[str] = TUNED, across_training: bool = False) -> Setting:
    """Everything that must be equal for two rows to be compared: all settings that affect training but seed, arm and
    tuning; ``across_training``: nor what moves the weights."""
    return _Settings(tuned, across_training).of(row)


class _Settings:
    """`setting_of` for many rows: rows that say the same have one `Setting`, which is made once.

    Rows of one program have the same names of settings, and most settings are those of some other row, so what is done
    for every row is one text of its values."""

    def __init__(self, tuned: Iterable[str], across_training: bool) -> None:
        self._ignored = {"seed", *_NAMED, *tuned, *(TRAINING if across_training else ())}
        self._compared: dict[tuple[Any, ...], list[str]] = {}  # names, by all names that a row has
        self._made: dict[tuple[Any, ...], Setting] = {}

    def of(self, row: Mapping[str, Any]) -> Setting:
        """What must be equal for another row to be compared with this one."""
        config = row["config"]
        values = {name: config[name] for name in self._names(row) if not is_as_before(name, config[name])}
        link = row.get("link_rate_asked"), row.get("link_delay_ms") or 0.0
        key = row["world_size"], *link, _dumped(values)
        if key not in self._made:
            texts = tuple((name, canonical(value)) for name, value in values.items())
            self._made[key] = Setting(row["world_size"], *link, texts)
        return self._made[key]

    def _names(self, row: Mapping[str, Any]) -> list[str]:
        """The settings that must be equal, sorted."""
        config, said = row["config"], row.get("side_settings")
        has_adapters = config.get("lora_rank") is not None  # rows from before there were adapters have none
        own = None if said is None else tuple(name for name in said if isinstance(name, str))
        key = tuple(config), tuple(arm_settings(row)), own, has_adapters
        if key not in self._compared:
            left_out = {*self._ignored, *arm_settings(row), *side_settings(row), *(() if has_adapters else _ADAPTERS)}
            self._compared[key] = sorted(name for name in config if name not in left_out)
        return self._compared[key]


def comparisons(
    rows: Iterable[Row], baseline: str = "none", tuned: Sequence[str] = TUNED, across_training: bool = False
) -> list[Comparison]:
    """The comparisons that the rows make, the one with the most runs first; arms in the order of the rows.

    ``baseline`` is an arm's label, however it is written, or a method's name where only one arm has that method. Of an
    arm's candidates (values of the ``tuned`` settings) the one with the most seeds is chosen, and among equals the one
    with the lowest mean loss, where a failed run counts as infinite. ``across_training``: optimizers, local steps and
    copies of the weights are a part of the arm (`setting_roles.TRAINING`)."""
    grouped: dict[Setting, dict[Arm, dict[Values, list[Row]]]] = {}
    settings = _Settings(tuned, across_training)
    for row in rows:
        values = tuple((name, canonical(row["config"].get(name))) for name in tuned)
        arms = grouped.setdefault(settings.of(row), {})
        arms.setdefault(Arm.of(row, across_training), {}).setdefault(values, []).append(row)
    result = []
    for setting, by_arm in grouped.items():
        arms_here = [_arm_runs(arm, trials) for arm, trials in by_arm.items()]
        result.append(Comparison(setting, arms_here, _baseline(arms_here, baseline)))
    return sorted(result, key=lambda c: -sum(len(runs.runs) for runs in c.arms))


def _arm_runs(arm: Arm, rows_by_values: Mapping[Values, list[Row]]) -> ArmRuns:
    trials = {values: _by_seed(rows) for values, rows in rows_by_values.items()}
    chosen = min(trials, key=lambda values: (-len(trials[values]), mean_loss(trials[values].values())))
    runs = trials[chosen]
    repeated = [row for row in rows_by_values[chosen] if row is not runs[row["seed"]]]
    tuned = {name: json.loads(text) for name, text in chosen}
    return ArmRuns(arm, dict(sorted(runs.items())), tuned, trials, repeated)


def _by_seed(rows: Iterable[Row]) -> dict[int, Row]:
    """One run for each seed: the last that ended well, since a failed cell may be tried again; otherwise the last."""
    chosen: dict[int, Row] = {}
    for row in rows:
        if row["seed"] not in chosen or not failed(row) or failed(chosen[row["seed"]]):
            chosen[row["seed"]] = row
    return chosen


def mean_loss(rows: Iterable[Row]) -> float:
    """The mean loss; infinite as soon as one of the runs failed."""
    losses = (None if failed(row) else loss_of(row) for row in rows)
    return statistics.fmean(float("inf") if loss is None else loss for loss in losses)


def _baseline(arms: Sequence[ArmRuns], name: str) -> ArmRuns | None:
    names = (name, spelling(name))
    labelled = [runs for runs in arms if runs.arm.label in names]
    if labelled:
        return max(labelled, key=lambda runs: len(runs.runs))
    alike = [runs for runs in arms if runs.arm.gradients == name and not runs.arm.training]
    family = [runs for runs in alike if runs.arm.parameters in (name, "none")]
    return family[0] if len(family) == 1 else None


def _further(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    config, defaults = row["config"], arm_settings(row)
    names = sorted(name for name in defaults if name not in _NAMED and name in config)
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


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:g} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:g} Mbit/s"


def canonical(value: Any) -> str:
    """The value as JSON, the same text for the same value."""
    return _plain(value) if value is None or isinstance(value, str | int | float) else _dumped(value)


@lru_cache(maxsize=4096, typed=True)
def _plain(value: Any) -> str:
    """`_dumped`, remembered for the few values that all rows have."""
    return _dumped(value)


_dumped = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
