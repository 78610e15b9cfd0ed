"""A draft as a folder that serving engines load: writing it, reading it, and checking it with an independent loader."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fsdp_lab.eagle.draft.attention import ChainCache
from fsdp_lab.eagle.draft.finished import FORMATS
from fsdp_lab.eagle.draft.formats import (
    CONFIG,
    EMBEDDING,
    WEIGHTS,
    Verifier,
    our_name,
    serving_config,
    shape_of,
    speculators_config,
    their_name,
)
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.reference import minimal_logits
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary


def save_draft(
    draft: Draft, folder: Path, verifier: Verifier, fmt: str = "serving", notes: Mapping[str, str] | None = None
) -> None:
    """Writes ``config.json`` and ``model.safetensors``, then reads them back and compares logits (`check_export`).

    ``notes`` are put into the weights' metadata, which engines do not read. ValueError for `speculators` without
    the target's embedding.
    """
    assert fmt in FORMATS, fmt
    if fmt == "speculators" and verifier.embedding is None:
        raise ValueError("target_dir: speculators' format holds the target's embedding; give the target's folder")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {their_name(name, fmt): tensor.contiguous() for name, tensor in draft.state_dict().items()}
    if fmt == "speculators":
        assert verifier.embedding is not None
        tensors[EMBEDDING] = verifier.embedding.detach().to("cpu", draft.fc.weight.dtype).contiguous()
    config = serving_config(draft) if fmt == "serving" else speculators_config(draft, verifier)
    config |= {"verifier_name": verifier.name} if fmt == "serving" else {}
    save_file(tensors, folder / f"{WEIGHTS}.partial", metadata={"format": "pt", **(notes or {})})
    (folder / f"{CONFIG}.partial").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in (WEIGHTS, CONFIG):
        (folder / f"{name}.partial").replace(folder / name)
    check_export(draft, folder)


def load_draft(folder: Path) -> Draft:
    """A draft from a `save_draft` folder of either format; ValueError says what is wrong with the folder."""
    config, tensors = read(folder)
    own = {our_name(name): tensor for name, tensor in tensors.items()}
    vocabulary = _vocabulary_in(own, folder)
    draft = Draft(shape_of(config, folder), vocabulary).to(own["fc.weight"].dtype)
    missing, unexpected = draft.load_state_dict(own, strict=False)
    unexpected = [name for name in unexpected if name != EMBEDDING]
    if missing or unexpected:
        raise ValueError(f"draft_dir: {folder} is not a draft of ours: missing {missing}, unknown {unexpected}")
    return draft


def check_export(draft: Draft, folder: Path, rows: int = 6) -> float:
    """Compares the draft's logits with those that `reference` computes from the written files.

    Both compute in float64, whatever the weights' dtype. Returns the largest difference over the largest logit.
    ValueError above 1e-5, which means that an engine would not draft what was trained.
    """
    config, tensors = read(folder)
    _check_config(config, tensors, folder)
    generator = torch.Generator().manual_seed(0)
    width = draft.shape.hidden_size
    features = torch.randn(rows, 3 * width, generator=generator)
    embedded = torch.randn(rows, width, generator=generator)
    wide = copy.deepcopy(draft).cpu().double()
    with torch.no_grad():
        hidden = wide.fuse(features[None].double())
        rotation = wide.rotate(hidden, torch.arange(rows))
        hidden = wide.midlayer(embedded[None].double(), hidden, rotation, ChainCache().attend)
        ours = wide.logits(hidden)[0]
    theirs = minimal_logits(config, tensors, embedded.double(), features.double())
    gap = float((ours - theirs).abs().max() / theirs.abs().max())
    if not gap <= 1e-5:
        raise ValueError(f"export: {folder} gives other logits than the draft: they differ by {gap:.1e}")
    return gap


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors in ``folder``, as they are stored. ValueError when they cannot be read."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return config, load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"draft_dir: {folder} holds no readable {CONFIG} and {WEIGHTS} ({error})") from None


def _vocabulary_in(tensors: dict[str, Tensor], folder: Path) -> Vocabulary:
    if not {"d2t", "t2d", "fc.weight"} <= tensors.keys():
        raise ValueError(f"draft_dir: {folder} is not an EAGLE-3 draft: wants d2t, t2d and fc.weight")
    return Vocabulary(tensors["d2t"], tensors["t2d"])


def _check_config(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    shape = shape_of(config, folder)
    vocabulary = _vocabulary_in(tensors, folder)
    layer = config.get("transformer_layer_config", config)
    claims = {"vocab_size": layer["vocab_size"], "draft_vocab_size": config["draft_vocab_size"]}
    truth = {"vocab_size": vocabulary.target_size, "draft_vocab_size": vocabulary.draft_size}
    if claims != truth or tensors["lm_head.weight"].shape != (vocabulary.draft_size, shape.hidden_size):
        raise ValueError(f"export: {folder / CONFIG} says {claims}, the weights {truth}")


def verifier_of(name: str, num_drafts: int = 3, embedding: bool = False) -> Verifier:
    """The target's architectures, and its ``embedding`` if wanted, from its folder, where ``name`` is a folder."""
    path = Path(name) / CONFIG
    if not path.is_file():
        return Verifier(name, (), num_drafts)
    architectures = json.loads(path.read_text(encoding="utf-8")).get("architectures")
    rows = Target.from_folder(Path(name), torch.float32).hf.get_input_embeddings().weight if embedding else None
    return Verifier(name, tuple(architectures or ()), num_drafts, rows)
