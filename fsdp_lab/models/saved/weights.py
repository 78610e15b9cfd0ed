"""Weights in a Hugging Face folder. Each rank reads only its own rows of each tensor; writing holds one file at a time.

A stranger may have made the folder. Its weights are read from safetensors, which can hold nothing but tensors, and
from a pickle (``.bin``) only when the user trusts it, and then with torch's restricted reader.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.adapted import additions, plain_parameters
from fsdp_lab.models.architectures.families import family_of
from fsdp_lab.models.shards.sharding import Held, whole
from fsdp_lab.settings.models.weight_files import pickle_advice, weight_files, weights_digest

FILE_BYTES = 5_000_000_000
_NOT_WEIGHTS = (
    r"\.attn\.(masked_)?bias$",
    r"rotary_emb\.inv_freq$",
    r"\.position_ids$",
)  # masks and tables that older versions saved

_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # in published BERTs


class SavedWeights:
    """The tensors of a folder by name; a tensor is read only when asked for. Raises ValueError naming what is wrong."""

    def __init__(self, folder: Path, trust_pickle: bool = False, key: str = "model_dir") -> None:
        """``key``: the flag that named the folder, for messages; only model_dir's pickles can be trusted."""
        self.folder, self._trust_pickle, self._key = folder, trust_pickle, key
        self._paths = weight_files(folder, trust_pickle, key)
        self._files = {path.name: self._open(path) for path in self._paths}
        self._file_of = {name: file for file, tensors in self._files.items() for name in tensors.keys()}  # noqa: SIM118 - safe_open is no dict

    def copy_to(self, parameters: Mapping[str, Held], source: Mapping[str, str]) -> None:
        """Fills what this process holds of the parameters, in their dtype; ``source``: what `check` gave for them."""
        for name, parameter in parameters.items():
            parameter.fill(self._slice(source[name]))

    def check(self, model: PreTrainedModel) -> dict[str, str]:
        """The tensor's name for every parameter of ``model``, which is whole, and may be on the meta device.

        ValueError when a tensor is missing, has another shape, or is one that the model does not have.
        """
        source = {self._in_model(name, model): name for name in self._file_of}
        self._check(model, plain_parameters(model), source)
        return source

    def check_blocks(self, config: PreTrainedConfig) -> None:
        """ValueError where ``config`` has more blocks than there are tensors: building those takes minutes."""
        if config.num_hidden_layers > len(self._file_of):
            raise ValueError(
                f"{self._key}: {self.folder}: config.json says {config.num_hidden_layers:,} blocks, "
                f"the files hold {len(self._file_of):,} tensors"
            )

    def num_elements(self) -> int:
        """How many numbers all tensors of the folder hold together."""
        return sum(math.prod(self._shape(name)) for name in self._file_of)

    def digest(self) -> str:
        """What tells these weights from others (`weights_digest`)."""
        return weights_digest(self._paths)

    def _open(self, path: Path) -> Any:
        try:
            return safe_open(path, framework="pt") if path.suffix == ".safetensors" else self._open_pickle(path)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise ValueError(f"{self._key}: {path} cannot be read: {error}") from None

    def _open_pickle(self, path: Path) -> dict[str, Tensor]:
        if not self._trust_pickle:
            raise ValueError(f"a pickle{pickle_advice('it', self._key)}")
        try:
            tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except pickle.UnpicklingError:  # whose text advises to read it in the way that runs code
            tensors = None
        if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ValueError("it holds something else than tensors by name")
        return tensors

    def _slice(self, name: str) -> Any:
        """An object that reads only those rows of the tensor for which it is indexed."""
        file = self._files[self._file_of[name]]
        return file[name] if isinstance(file, dict) else file.get_slice(name)

    def _shape(self, name: str) -> tuple[int, ...]:
        tensor = self._slice(name)
        return tuple(tensor.shape if isinstance(tensor, Tensor) else tensor.get_shape())

    def _in_model(self, name: str, model: PreTrainedModel) -> str:
        """The parameter's name in ``model``: published GPT-2s are saved without the prefix that the body has there."""
        prefix = f"{model.base_model_prefix}."
        for old, new in _OLD_NAMES.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name.startswith((prefix, "lm_head.", "cls.")):
            return name
        return prefix + name

    def _check(self, model: PreTrainedModel, wanted: Mapping[str, Tensor], source: Mapping[str, str]) -> None:
        tied = set(model.all_tied_weights_keys)  # a second name of what is there already
        strange = [
            name
            for name in source.keys() - wanted.keys() - tied
            if not any(re.search(pattern, name) for pattern in _NOT_WEIGHTS)
        ]
        complaints = [f"no tensor for {name}" for name in wanted if name not in source]
        complaints += [f"{source[name]} is no parameter of a {model.config.model_type}" for name in sorted(strange)]
        complaints += [
            f"{source[name]} has shape {self._shape(source[name])}, config.json says {tuple(parameter.shape)}"
            for name, parameter in wanted.items()
            if name in source and self._shape(source[name]) != tuple(parameter.shape)
        ]
        if complaints:
            more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
            raise ValueError(f"{self._key}: {self.folder}: {complaints[0]}{more}")


@dataclass(frozen=True)
class Weight:
    """One whole tensor of a model: its size in the model's dtype, and how all ranks make it; collective."""

    num_bytes: int
    gather: Callable[[], Tensor]


def weights_of(model: PreTrainedModel) -> dict[str, Weight]:
    """The weights of a model that is whole, or sharded by FSDP2; what adapters add is in them."""
    added = additions(model)
    return {
        name: Weight(p.numel() * p.element_size(), partial(_gathered, p, added.get(name)))
        for name, p in plain_parameters(model).items()
    }


def save_folder(
    model: PreTrainedModel, folder: Path, writes: bool, weights: Mapping[str, Weight] | None = None
) -> None:
    """Writes ``model`` as `from_pretrained` reads it. All ranks that hold it call this; one of them ``writes``.

    ``weights``: how its tensors become whole, where FSDP2's shards are not all there is to it. Each is gathered whole
    on every rank, one after the other; the writing rank holds those of one file.
    """
    weights = weights_of(model) if weights is None else weights
    files = _files(weights)
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        config = deepcopy(model.config)
        config.architectures, config.dtype = [family_of(config).model.__name__], "float32"
        config.save_pretrained(folder)
        if model.can_generate():  # a masked model generates nothing
            model.generation_config.save_pretrained(folder)
    for file, names in files.items():
        tensors = {}
        for name in names:
            tensor = weights[name].gather()
            if writes:
                tensors[name] = tensor.cpu().contiguous()
        if writes:
            save_file(tensors, folder / file, metadata={"format": "pt"})
    if writes and len(files) > 1:
        sizes = {"total_size": sum(weight.num_bytes for weight in weights.values())}
        index = {"metadata": sizes, "weight_map": {name: file for file, names in files.items() for name in names}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _files(weights: Mapping[str, Weight]) -> dict[str, list[str]]:
    """The tensors of each file, in order; no file is larger than FILE_BYTES, unless a single tensor is."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, weight in weights.items():
        if groups[-1] and size + weight.num_bytes > FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += weight.num_bytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": names for i, names in enumerate(groups, start=1)}


def _gathered(parameter: Tensor, added: Callable[[], Tensor] | None) -> Tensor:
    tensor = whole(parameter)
    return tensor if added is None else tensor + added()
