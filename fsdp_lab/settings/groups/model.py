"""Which model a run trains, and the arithmetic it runs in."""

from dataclasses import dataclass
from typing import Any

from fsdp_lab.settings.operators import WORDS, complaints_about
from fsdp_lab.settings.reading.fields import ConfigError, Settings, setting


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Which model, and the arithmetic it runs in."""

    model: str | None = setting(
        None,
        "preset (gpt2-nano, gpt2, qwen3-0.6b, llama-3.2-1b, ...: docs/trainer/models.md); none: gpt2-nano without a "
        "GPU, gpt2-62m with one",
    )
    model_dir: str | None = setting(
        None, "Hugging Face folder of a GPT-2, Qwen2, Qwen3, Llama, MiniCPM or BERT to start from", exists=("folder",)
    )
    vocab_size: int | None = setting(
        None,
        "ids of GPT-2's tokenizer to train with: fewer keep its first merges only; none: the preset's (gpt2-mini, "
        "llama-mini: 4096), else all 50257",
        at_least=257,
        at_most=50257,
    )
    trust_pickle: bool = setting(
        False,
        "also read model_dir's weights from pickles (.bin), which can run code; otherwise only safetensors",
        affects_training=False,
    )
    mixed_precision: str = setting(
        "auto",
        "dtype of forward and backward; auto: bf16 on a GPU, no otherwise; fp16: with loss scaling "
        "(docs/trainer/models.md)",
        choices=("auto", "no", "bf16", "fp16"),
    )
    attention: str = setting(
        "sdpa",
        "attention kernel: torch's own, FlashAttention 2 (needs flash-attn), FlexAttention, or plain matrices",
        choices=("sdpa", "flash", "flex", "eager"),
    )
    operators: dict[str, Any] = setting(  # noqa: RUF009 - a new dict each
        {},
        "what computes each operator, {operator: implementation}, with others for those that are not named; or a word "
        "for all: naive, best (docs/trainer/operators.md)",
        others=WORDS,
    )
    activation_checkpointing: bool = setting(
        False, "compute each block's activations again in backward instead of keeping them"
    )
    compile: bool = setting(False, "compile the model's blocks with torch.compile")
    cpu_offload: bool = setting(
        False,
        "keep each rank's parameters, gradients and optimiser state in the CPU's memory (FSDP2's CPUOffloadPolicy)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if complaints := complaints_about(self, self.mixed_precision):
            raise ConfigError(complaints)
        operators = {name: asked for name, asked in self.operators.items() if (name, asked) != ("others", "default")}
        if "precision" in operators:  # one setting with two names, of which everyone reads the other
            precision = operators.pop("precision")
            object.__setattr__(self, "mixed_precision", "no" if precision == "fp32" else precision)
        object.__setattr__(self, "operators", operators)
