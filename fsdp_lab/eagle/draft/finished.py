"""The settings of programs that take a finished draft: `fsdp_lab.eagle.evaluate` and `export`."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdp_lab.settings.reading.fields import Config, Settings, setting

FORMATS = ("serving", "speculators")


@dataclass(frozen=True)
class EvaluateSettings(Settings):
    """Which draft is evaluated, with which target and on which conversations."""

    target_dir: str | None = setting(None, "folder of the target model", exists=("folder",))
    draft_dir: str | None = setting(None, "folder of the draft", exists=("folder",))
    data_path: str | None = setting(None, "JSON lines of held-out conversations", exists=("file",))
    dtype: str = setting("fp32", "dtype of the arithmetic", choices=("fp32", "bf16"))
    max_length: int = setting(2048, "tokens of a conversation that are kept", at_least=4)
    steps_ahead: int = setting(7, "positions in the table", at_least=1)
    batch_size: int = setting(8, "conversations at once, for the table", at_least=1)
    conversations: int | None = setting(None, "conversations in the table; none: all", at_least=1)
    prompts: int = setting(20, "first questions that are answered for the speed", at_least=1)
    max_new_tokens: int = setting(128, "tokens of an answer at most", at_least=2)
    num_drafts: str = setting(
        "1,2,4",
        "tokens drafted before each pass of the target; several are compared",
        pattern=(r"[1-9][0-9]?(,[1-9][0-9]?)*", "numbers of 1 to 99 with commas between"),
    )
    temperature: float = setting(0.0, "0: always the most likely token", at_least=0)
    greedy_drafts: bool = setting(False, "propose the draft's first choices also when sampling")
    seed: int = setting(42, "seed of the drawing", at_least=0)
    threads: int | None = setting(None, "CPU threads; none: torch's choice", at_least=1)
    out: str | None = setting(None, "JSON file for the same figures")


@dataclass(frozen=True)
class EvaluateConfig(Config):
    """All settings of one evaluation of a draft."""

    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)


@dataclass(frozen=True)
class ExportSettings(Settings):
    """Which draft is exported, in which format and for which target."""

    draft_dir: str | None = setting(None, "folder of a trained draft", exists=("folder",))
    out: str | None = setting(None, "folder to write")
    format: str = setting("serving", "whose format", choices=FORMATS)
    target_dir: str | None = setting(
        None, "the target's name or folder, as the export should say it; speculators needs a folder, for its embedding"
    )
    num_drafts: int = setting(3, "tokens that speculators' engines should draft a pass", at_least=1)


@dataclass(frozen=True)
class ExportConfig(Config):
    """All settings of one export of a draft."""

    export: ExportSettings = field(default_factory=ExportSettings)
