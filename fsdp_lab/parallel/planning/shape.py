"""The sizes of a model that decide what its parts compute, send and hold: from a preset, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_lab.settings.models.masked import MASKED
from fsdp_lab.settings.models.presets import PRESETS, unknown_preset

_VOCABULARY = 50257  # GPT-2's tokenizer, where a preset names no other
_DIVIDED = ("gpt2", "bert", "llama", "qwen2", "qwen3")
_WITH_BIASES = ("gpt2", "bert")


@dataclass(frozen=True)
class ModelShape:
    """A transformer's sizes. ``heads``, ``key_heads``: of queries, and of keys and values, of ``head_width`` features
    each. ``columns``: of the MLP. ``context``: learned positions; 0 where positions are rotary. ``is_tied``: embedding
    and head share their weights.
    """

    family: str
    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    columns: int
    vocabulary: int
    context: int
    is_tied: bool

    @property
    def is_masked(self) -> bool:
        """Does it fill in masked tokens (BERT), so that its head sees some positions only?"""
        return self.family in MASKED

    @property
    def queries(self) -> int:
        """How many features the queries of all heads have together."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        """Features of all keys, and as many of all values."""
        return self.key_heads * self.head_width

    @property
    def attention_parameters(self) -> int:
        """Parameters of a block that are divided by heads."""
        features = self.queries + 2 * self.keys
        biases = features if self.family in (*_WITH_BIASES, "qwen2") else 0
        return self.width * features + biases + self.queries * self.width

    @property
    def mlp_parameters(self) -> int:
        """Parameters of a block that are divided by columns."""
        if self.family in _WITH_BIASES:
            return 2 * self.width * self.columns + self.columns
        return 3 * self.width * self.columns

    @property
    def block_rest(self) -> int:
        """Parameters of a block that every rank holds: norms, and the biases behind sums."""
        if self.family in _WITH_BIASES:
            return 6 * self.width
        return 2 * self.width + (2 * self.head_width if self.family == "qwen3" else 0)

    @property
    def word_parameters(self) -> int:
        """Parameters of embedding and head, divided by words."""
        return self.vocabulary * self.width * (1 if self.is_tied else 2) + self.is_masked * self.vocabulary

    @property
    def rest(self) -> int:
        """Parameters outside of blocks that every rank holds."""
        if self.is_masked:  # positions, two types, their norm; the head's transform and its norm; pooler; pairs
            width = self.width
            return (
                (self.context + 2 + 2) * width + (width * width + 3 * width) + (width * width + width) + 2 * width + 2
            )
        return self.context * self.width + (2 if self.family == "gpt2" else 1) * self.width

    @property
    def block(self) -> int:
        """How many parameters one block has."""
        return self.attention_parameters + self.mlp_parameters + self.block_rest

    @property
    def parameters(self) -> int:
        """How many parameters the whole model has."""
        return self.layers * self.block + self.word_parameters + self.rest


def shape_of(preset: str) -> ModelShape:
    """The shape of a preset. ValueError for one that is unknown, or whose architecture cannot be divided."""
    if complaint := unknown_preset(preset):
        raise ValueError(complaint)
    chosen = PRESETS[preset]
    if chosen.family not in _DIVIDED:
        raise ValueError(
            f"model: a {chosen.family} cannot be divided over ranks; those that can: {', '.join(_DIVIDED)}"
        )
    given = dict(chosen.shape)
    width, heads = given.get("n_embd") or given["hidden_size"], given.get("n_head") or given["num_attention_heads"]
    is_gpt2 = chosen.family == "gpt2"
    return ModelShape(
        family=chosen.family,
        width=width,
        layers=given.get("n_layer") or given["num_hidden_layers"],
        heads=heads,
        key_heads=given.get("num_key_value_heads") or heads,
        head_width=given.get("head_dim") or width // heads,
        columns=given.get("intermediate_size") or 4 * width,
        vocabulary=given.get("vocab_size") or chosen.vocab_size or _VOCABULARY,
        context=given["n_positions"] if is_gpt2 else given["max_position_embeddings"] if chosen.family == "bert" else 0,
        is_tied=given.get("tie_word_embeddings", True),
    )
