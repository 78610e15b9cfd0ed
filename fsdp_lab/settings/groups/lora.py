"""Adapters of low rank."""

from dataclasses import dataclass

from fsdp_lab.settings.reading.fields import Settings, setting

_LAYERS = (r"[A-Za-z0-9_.-]+( *, *[A-Za-z0-9_.-]+)*", "one or more names of layers, by commas, or all-linear")


@dataclass(frozen=True)
class LoraConfig(Settings):
    """LoRA (arXiv 2106.09685): adapters of low rank are trained, the model's own weights stay as they are."""

    lora_rank: int | None = setting(
        None,
        "train LoRA adapters of this rank, and nothing else (docs/trainer/lora.md); none: train all weights",
        at_least=1,
    )
    lora_alpha: float | None = setting(
        None,
        "scale of the adapters: lora_alpha / lora_rank times what they give is added; none: twice the rank",
        above=0,
    )
    lora_dropout: float = setting(0.0, "share of the adapters' inputs that training drops", at_least=0, below=1)
    lora_targets: str | None = setting(
        None,
        "layers of every block that get adapters, by commas (c_attn; q_proj,v_proj), or all-linear; none: those that "
        "make queries and values",
        pattern=_LAYERS,
    )
