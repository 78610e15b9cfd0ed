"""The target: a frozen Hugging Face causal language model, with the hidden states that a draft reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from fsdp_lab.models.architectures.config_json import brings_code, read_config_json
from fsdp_lab.models.architectures.families import logits_divisor
from fsdp_lab.models.saved.weights import SavedWeights

transformers_logging.disable_progress_bar()


def default_layers(num_layers: int) -> tuple[int, int, int]:
    """A low, a middle and a high layer whose *inputs* the draft fuses: 2, L/2, L - 3, as serving engines assume.

    ValueError for a target of fewer than three layers.
    """
    if num_layers < 3:
        raise ValueError(f"target: {num_layers} layers; EAGLE-3 reads the input of layer 2, so it wants 3 or more")
    return 2, max(2, num_layers // 2), max(2, num_layers - 3)


class Seen(NamedTuple):
    """The result of one pass of the target.

    ``features`` ``[B, T, 3h]``: the low, middle and high hidden states, concatenated. ``last`` ``[B, T, h]``: the
    hidden states that are multiplied with the head.
    """

    features: Tensor
    last: Tensor


class Target(nn.Module):
    """A frozen causal language model; hooks on some decoder blocks keep the blocks' inputs.

    Llama, Qwen2, Qwen3, MiniCPM and GPT-2 are tested. Any other model of transformers with one list of blocks and a
    head without bias should work. ``layers``: which blocks' inputs are the features; none: `default_layers`.
    """

    def __init__(self, hf: nn.Module, layers: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.hf: Any
        self.add_module("hf", hf.eval().requires_grad_(False))
        self.blocks: nn.ModuleList = _blocks(self.hf)
        self.layers = layers or default_layers(len(self.blocks))
        if len(self.layers) != 3 or not all(2 <= i < len(self.blocks) for i in self.layers):
            raise ValueError(f"layers: got {list(self.layers)}, wants three of 2 to {len(self.blocks) - 1}")
        self._tapped: dict[int, Tensor] = {}
        for i in set(self.layers):
            self.blocks[i].register_forward_pre_hook(lambda _, args, i=i: self._tapped.__setitem__(i, args[0]))
        if self.hf.get_output_embeddings().bias is not None:
            raise ValueError("target: its head has a bias, which no draft's head has")
        for name in ("final_logit_softcapping", "logit_scale"):
            if getattr(self.hf.config, name, None) not in (None, 1.0):
                raise ValueError(f"target: {name}: logits that are not the head's product alone are not supported")
        # MiniCPM and Granite divide their logits; folded into the rows that are multiplied with the head
        self._last_scale = 1.0 / logits_divisor(self.hf.config)

    @classmethod
    def from_folder(cls, folder: Path, dtype: torch.dtype, layers: tuple[int, ...] | None = None) -> Target:
        """A target from a local Hugging Face folder; ValueError says what is wrong with the folder."""
        settings = read_config_json(folder, "target_dir")
        model_type = settings.get("model_type")
        if brings_code(settings) and model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"target_dir: {folder} is a {model_type!r}, which only the code that comes with the folder (auto_map) "
                "knows; such code is never run"
            )
        _check_size(folder)
        try:
            hf = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype
            )
        except Exception as error:  # a stranger's file: transformers' checks of it raise any exception
            what = " ".join(str(error).split())
            raise ValueError(f"target_dir: {folder} cannot be loaded as a causal language model: {what}") from None
        return cls(hf, layers)

    def train(self, mode: bool = True) -> Target:
        """Keeps the target in evaluation mode: it is frozen and has no dropout, whatever the draft's mode."""
        return super().train(False)

    @property
    def config(self) -> Any:
        """The configuration of the model, as transformers has it."""
        return self.hf.config

    @property
    def vocab_size(self) -> int:
        """How many tokens the target has: the rows of its head."""
        return int(self.head.shape[0])

    @property
    def max_positions(self) -> int:
        """The longest sequence that the target can process."""
        return int(self.config.max_position_embeddings)

    @property
    def head(self) -> Tensor:
        """The weight of the head ``[V, h]``: logits are ``last @ head.T``."""
        weight: Tensor = self.hf.get_output_embeddings().weight
        return weight

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings of ``tokens`` as they are stored, before any factor that the target applies."""
        weight: Tensor = self.hf.get_input_embeddings().weight
        return F.embedding(tokens, weight)

    @torch.no_grad()
    def forward(self, tokens: Tensor, cache: DynamicCache | None = None) -> Seen:
        """One pass over ``tokens`` ``[B, T]``. With a cache they follow the tokens in it, and are added to it."""
        try:
            last = self.hf.base_model(tokens, past_key_values=cache, use_cache=cache is not None).last_hidden_state
            features = torch.cat([self._tapped[i] for i in self.layers], -1)
        finally:
            self._tapped.clear()
        return Seen(features, last if self._last_scale == 1.0 else last * self._last_scale)

    def logits(self, last: Tensor) -> Tensor:
        """Logits ``[..., V]`` of the hidden states ``last`` ``[..., h]``."""
        return F.linear(last, self.head)


def _check_size(folder: Path) -> None:
    """ValueError where the configuration has more parameters than the files: transformers would make up the others."""
    saved = SavedWeights(folder, key="target_dir")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        saved.check_blocks(config)
        with torch.device("meta"):  # no memory
            sketch = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # a stranger's file, as above
        what = " ".join(str(error).split())
        raise ValueError(f"target_dir: no model can be built from {folder / 'config.json'}: {what}") from None
    wanted, held = sum(p.numel() for p in sketch.parameters()), saved.num_elements()
    if wanted > held and not hasattr(config, "quantization_config"):
        raise ValueError(f"target_dir: {folder}: config.json wants {wanted:,} parameters, the files hold {held:,}")


def _blocks(hf: Any) -> nn.ModuleList:
    base = hf.base_model
    for name in ("layers", "h"):
        if isinstance(blocks := getattr(base, name, None), nn.ModuleList):
            return blocks
    raise ValueError(f"target: {type(hf).__name__} has no list of decoder blocks named layers or h")
