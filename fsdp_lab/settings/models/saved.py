"""The settings of programs that take a saved model: `fsdp_lab.validate` and `fsdp_lab.chat`."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdp_lab.settings.groups import DataConfig
from fsdp_lab.settings.reading.fields import Config, Settings, setting


@dataclass(frozen=True)
class ValidateSettings(Settings):
    """Which model to evaluate, and how."""

    model_dir: str | None = setting(None, "folder of a saved model", exists=("folder",))
    trust_pickle: bool = setting(False, "also read weights from pickles (.bin), which can run code")
    batch_size: int = setting(8, "sequences evaluated at once: no influence on the result", at_least=1)


@dataclass(frozen=True)
class ValidateConfig(Config):
    """All settings of one evaluation."""

    validate: ValidateSettings = field(default_factory=ValidateSettings)
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class ChatSettings(Settings):
    """Which model, and how to draw from it."""

    model_dir: str | None = setting(None, "folder of a saved model", exists=("folder",))
    trust_pickle: bool = setting(False, "also read weights from pickles (.bin), which can run code")
    prompt: str | None = setting(None, "text to continue; none: ask for prompts")
    max_new_tokens: int = setting(64, "tokens to add at most", at_least=1)
    temperature: float = setting(0.8, "0: always the most likely token", at_least=0)
    top_k: int = setting(50, "draw among this many most likely tokens; 0: among all", at_least=0)
    top_p: float = setting(
        1.0,
        "draw among the fewest most likely tokens that have this share of the probability together, of what top_k "
        "leaves at this temperature; 1: among all",
        above=0,
        at_most=1,
    )
    seed: int = setting(42, "seed of the drawing", at_least=0)
    draft: str | None = setting(
        None, "folder of an EAGLE-3 draft of this model: the same answers in fewer passes", exists=("folder",)
    )
    num_drafts: int = setting(4, "draft: tokens drafted before each pass of the model", at_least=1)
    chat_template: bool | None = setting(
        None,
        "put a prompt as the user's turn, by the model's own template, and print the answer alone; none: with a draft, "
        "where there is a template",
    )


@dataclass(frozen=True)
class ChatConfig(Config):
    """All settings of one conversation."""

    chat: ChatSettings = field(default_factory=ChatSettings)
