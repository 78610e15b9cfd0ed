"""Dividing a Hugging Face model over the ranks of a wiring, block by block, in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.models.shards.pieces import Piece, rows, scaled, side_by_side
from fsdp_lab.parallel.division import attention
from fsdp_lab.parallel.division.linear import RowLinear, VocabularyEmbedding, keep_columns
from fsdp_lab.parallel.division.wiring import Collective, Wiring


@dataclass(frozen=True)
class BlockParts:
    """Where in a block of one architecture its parts are, by names in the block.

    ``attention`` and ``mlp``: the modules whose input enters the part. ``heads``: layers with one output a head's
    feature; ``fused``: one layer that is all of them (GPT-2). ``head_norms``: parameters that all heads share.
    """

    attention: str
    heads: tuple[str, ...]
    attention_out: str
    mlp: str
    columns: tuple[str, ...]
    mlp_out: str
    fused: str = ""
    head_norms: tuple[str, ...] = ()


_LLAMA = BlockParts(
    attention="self_attn",
    heads=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.o_proj",
    mlp="mlp",
    columns=("mlp.gate_proj", "mlp.up_proj"),
    mlp_out="mlp.down_proj",
    head_norms=("self_attn.q_norm", "self_attn.k_norm"),
)
PARTS = {
    "bert": BlockParts(
        attention="attention.self",
        heads=("attention.self.query", "attention.self.key", "attention.self.value"),
        attention_out="attention.output.dense",
        mlp="intermediate",
        columns=("intermediate.dense",),
        mlp_out="output.dense",
    ),
    "gpt2": BlockParts("attn", (), "attn.c_proj", "mlp", ("mlp.c_fc",), "mlp.c_proj", fused="attn.c_attn"),
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}
"""By a config.json's model_type: the architectures that can be divided."""


@dataclass
class Division:
    """What a rank holds of a model, by the parameters' names in it.

    ``pieces``: of those that are divided. ``summed``: those that all ranks hold whole, though each sees but a part of
    what they act on: their gradients must be summed over the ranks.
    """

    pieces: dict[str, Piece] = field(default_factory=dict)
    summed: set[str] = field(default_factory=set)


def divide(model: PreTrainedModel, wiring: Wiring) -> Division:
    """Divides ``model`` (which may be on the meta device) in place, and says what this rank holds of it.

    ValueError for an architecture that cannot be divided, for heads, columns or words of which a rank would get none,
    and for attention kernels other than torch's own.
    """
    config = model.config
    if config.model_type not in PARTS:
        raise ValueError(
            f"model: a {config.model_type} cannot be divided over ranks; those that can: {', '.join(PARTS)}"
        )
    if config._attn_implementation != "sdpa":
        raise ValueError("attention: a model that is divided over ranks has torch's own attention; give sdpa")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise ValueError("model: attention in windows cannot be divided over ranks")
    division = Division()
    for name, block in blocks_of(model).items():
        pieces = _divide_block(block, name, PARTS[config.model_type], config, wiring)
        division.pieces |= {f"{name}.{key}": piece for key, piece in pieces.items()}
    if wiring.layout.vocabulary:
        division.pieces |= _divide_vocabulary(model, wiring)
    if not wiring.layout.attention:
        config._attn_implementation = attention.NAME
    division.summed = _summed(model, division, PARTS[config.model_type], wiring)
    return division


def _divide_block(
    block: nn.Module, name: str, parts: BlockParts, config: PreTrainedConfig, wiring: Wiring
) -> dict[str, Piece]:
    pieces: dict[str, Piece] = {}
    if wiring.layout.attention:
        pieces |= _divide_heads(block, parts, config, wiring)
        features = pieces.pop("")
        _enter(block.get_submodule(parts.attention), wiring.enter(f"{name}.attention.in"))
        pieces |= _replace(block, parts.attention_out, features, wiring.leave(f"{name}.attention.out"))
    else:
        module = block.get_submodule(parts.attention)
        module.gathered_keys = attention.GatheredKeys(wiring, wiring.gather_keys(f"{name}.attention.keys"))  # type: ignore[assignment]
    if wiring.layout.mlp:
        first = block.get_submodule(parts.columns[0])
        columns = rows(wiring.mine("columns", _outputs(first)))
        for layer in parts.columns:
            pieces |= _named(layer, keep_columns(block.get_submodule(layer), columns))
        _enter(block.get_submodule(parts.mlp), wiring.enter(f"{name}.mlp.in"))
        pieces |= _replace(block, parts.mlp_out, columns, wiring.leave(f"{name}.mlp.out"))
    return pieces


def _divide_heads(block: nn.Module, parts: BlockParts, config: PreTrainedConfig, wiring: Wiring) -> dict[str, Piece]:
    """The pieces of the layers in front of the attention; under "" that of the features behind it.

    Heads that share keys and values stay together.
    """
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    keys = scaled(wiring.mine("heads (of keys and values)", shared), width)
    if parts.fused:
        fused = block.get_submodule(parts.fused)
        piece = side_by_side(keys, config.hidden_size, 3)
        block.get_submodule(parts.attention).split_size = len(keys)  # type: ignore[assignment]
        return {"": rows(keys), **_named(parts.fused, keep_columns(fused, piece))}
    queries = scaled(keys, config.num_attention_heads // shared)
    pieces = {"": rows(queries)}
    for layer, features in zip(parts.heads, (queries, keys, keys), strict=True):
        pieces |= _named(layer, keep_columns(block.get_submodule(layer), rows(features)))
    return pieces


def _divide_vocabulary(model: PreTrainedModel, wiring: Wiring) -> dict[str, Piece]:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = {id(module): name for name, module in model.named_modules()}
    is_tied = head.weight is embedding.weight
    words = wiring.mine("words", embedding.num_embeddings)
    divided = VocabularyEmbedding(embedding, words, wiring.leave("embedding"))
    pieces = _named(names[id(embedding)], divided.pieces)
    model.set_input_embeddings(divided)
    pieces |= _named(names[id(head)], keep_columns(head, rows(words)))
    if is_tied:
        head.weight = divided.weight
    if model.config.model_type == "bert":  # whose bias has a second name
        model.cls.predictions.bias = head.bias
        pieces["cls.predictions.bias"] = rows(words)
    return pieces


def _summed(model: PreTrainedModel, division: Division, parts: BlockParts, wiring: Wiring) -> set[str]:
    whole = {name for name, _ in model.named_parameters()} - division.pieces.keys()
    if wiring.layout.by_positions:
        return whole
    return {name for name in whole if any(f".{norm}." in name for norm in parts.head_norms)}


def _replace(block: nn.Module, name: str, piece: Piece, leave: Collective) -> dict[str, Piece]:
    """Puts a `RowLinear` where the layer ``name`` was; what is left of its parameters."""
    layer = RowLinear(block.get_submodule(name), piece, leave)
    parent, _, own = name.rpartition(".")
    setattr(block.get_submodule(parent), own, layer)
    return _named(name, layer.pieces)


def _enter(module: nn.Module, collective: Collective) -> None:
    """Passes a module's first input, ``hidden_states``, through ``collective``."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (collective(args[0]), *args[1:]), kwargs
        hidden: Tensor = kwargs["hidden_states"]
        return args, {**kwargs, "hidden_states": collective(hidden)}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _outputs(layer: nn.Module) -> int:
    return int(layer.nf if hasattr(layer, "nf") else layer.out_features)  # type: ignore[arg-type]


def _named(layer: str, pieces: dict[str, Piece]) -> dict[str, Piece]:
    return {f"{layer}.{name}": piece for name, piece in pieces.items()}
