"""The two formats of a draft's folder: `serving` is read by SGLang, vLLM, SpecForge and this trainer.

`speculators` is the format of vllm-project/speculators. It holds the target's embedding beside the draft, because that
library takes what a file lacks from uninitialised memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fsdp_lab.eagle.draft.network import Draft, DraftShape

WEIGHTS, CONFIG = "model.safetensors", "config.json"
EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class Verifier:
    """The target as an export names it. ``num_drafts``: how many tokens an engine should draft before each pass.

    ``embedding`` ``[V, h]``: the target's embedding, which only `speculators` exports hold.
    """

    name: str
    architectures: tuple[str, ...]
    num_drafts: int = 3
    embedding: Tensor | None = None


def serving_config(draft: Draft) -> dict[str, Any]:
    """The config.json of the `serving` format."""
    shape, layers = draft.shape, list(draft.shape.layers)
    rope = dict(shape.rope)
    theta = rope.pop("rope_theta")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": theta,
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
        "max_position_embeddings": shape.max_positions,
        "vocab_size": len(draft.t2d),
        "draft_vocab_size": len(draft.d2t),
        "target_hidden_size": shape.hidden_size,
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "torch_dtype": str(draft.fc.weight.dtype).removeprefix("torch."),
        # inputs of these layers of the target: hidden_states[i] in transformers' count
        "eagle_aux_hidden_state_layer_ids": layers,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers},
    }


_OF_THE_DRAFT = (  # in speculators' format beside the layer's own configuration
    "architectures",
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
)


def speculators_config(draft: Draft, verifier: Verifier) -> dict[str, Any]:
    """The config.json of the `speculators` format."""
    flat = serving_config(draft)
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": verifier.num_drafts, "verifier_accept_k": 1}
            ],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier.name, "architectures": list(verifier.architectures)},
        },
        "transformer_layer_config": {name: value for name, value in flat.items() if name not in _OF_THE_DRAFT},
        "draft_vocab_size": flat["draft_vocab_size"],
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": flat["eagle_aux_hidden_state_layer_ids"],
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": flat["torch_dtype"],
    }


def their_name(name: str, fmt: str) -> str:
    """The name in the format ``fmt`` of the parameter that `Draft` calls ``name``."""
    return name.replace("midlayer.", "layers.0.") if fmt == "speculators" else name


def our_name(name: str) -> str:
    """The name in `Draft` of a parameter in a folder of either format."""
    return name.replace("layers.0.", "midlayer.")


def shape_of(config: dict[str, Any], folder: Path) -> DraftShape:
    """The sizes of the draft that a config.json of either format describes. ValueError when it lacks one."""
    layer = config.get("transformer_layer_config", config)
    try:
        return DraftShape(
            hidden_size=layer["hidden_size"],
            intermediate_size=layer["intermediate_size"],
            num_heads=layer["num_attention_heads"],
            num_kv_heads=layer["num_key_value_heads"],
            head_dim=layer["head_dim"],
            max_positions=layer["max_position_embeddings"],
            layers=tuple(config["eagle_aux_hidden_state_layer_ids"]),
            rms_norm_eps=layer["rms_norm_eps"],
            rope={"rope_type": "default"} | (layer["rope_scaling"] or {}) | {"rope_theta": layer["rope_theta"]},
        )
    except KeyError as error:
        raise ValueError(f"draft_dir: {folder / CONFIG} does not say {error}") from None
