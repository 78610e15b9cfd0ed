"""A draft as a folder that serving engines load, and back; with a check that reads it as they do.

    python -m fsdp_lab.eagle.draft.export --draft_dir RUN/draft --out OUT --format speculators --target_dir TARGET

`serving` is what SGLang, vLLM and SpecForge read, and what we train from; `speculators` is vllm-project/speculators',
with the target's embedding beside the draft: the library takes what a file lacks from uninitialised memory.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fsdp_lab.eagle.draft.attention import ChainCache
from fsdp_lab.eagle.draft.network import Draft, DraftShape
from fsdp_lab.eagle.draft.reference import minimal_logits
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.settings.reading.fields import Config, Settings, setting
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMATS = ("serving", "speculators")
_EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class Verifier:
    """The target as an export names it. ``num_drafts``: how many tokens an engine should draft a pass.

    ``embedding`` ``[V, h]``: the target's, which only `speculators` exports hold."""

    name: str
    architectures: tuple[str, ...]
    num_drafts: int = 3
    embedding: Tensor | None = None


def save_draft(
    draft: Draft, folder: Path, verifier: Verifier, fmt: str = "serving", notes: Mapping[str, str] | None = None
) -> None:
    """Write ``config.json`` and ``model.safetensors``, then read them back and compare logits (`check_export`).

    ``notes``: said in the weights' metadata, which engines do not read. ValueError for `speculators` without
    the target's embedding.
    """
    assert fmt in FORMATS, fmt
    if fmt == "speculators" and verifier.embedding is None:
        raise ValueError("target_dir: speculators' format holds the target's embedding; give the target's folder")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {_their_name(name, fmt): tensor.contiguous() for name, tensor in draft.state_dict().items()}
    if fmt == "speculators":
        assert verifier.embedding is not None
        tensors[_EMBEDDING] = verifier.embedding.detach().to("cpu", draft.fc.weight.dtype).contiguous()
    config = _serving_config(draft) if fmt == "serving" else _speculators_config(draft, verifier)
    config |= {"verifier_name": verifier.name} if fmt == "serving" else {}
    save_file(tensors, folder / f"{WEIGHTS}.partial", metadata={"format": "pt", **(notes or {})})
    (folder / f"{CONFIG}.partial").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in (WEIGHTS, CONFIG):
        (folder / f"{name}.partial").replace(folder / name)
    check_export(draft, folder)


def load_draft(folder: Path) -> Draft:
    """A draft from a `save_draft` folder of either format; ValueError says what is wrong with the folder."""
    config, tensors = _read(folder)
    own = {_our_name(name): tensor for name, tensor in tensors.items()}
    vocabulary = _found(own, folder)
    draft = Draft(_shape(config, folder), vocabulary).to(own["fc.weight"].dtype)
    missing, unexpected = draft.load_state_dict(own, strict=False)
    unexpected = [name for name in unexpected if name != _EMBEDDING]
    if missing or unexpected:
        raise ValueError(f"draft_dir: {folder} is not a draft of ours: missing {missing}, unknown {unexpected}")
    return draft


def check_export(draft: Draft, folder: Path, rows: int = 6) -> float:
    """Logits of the written files, as a minimal loader of its own computes them, against the draft's.

    Both compute in float64, whatever the weights are kept in. Returns the largest difference over the largest
    logit; ValueError above 1e-5, which means that an engine would draft something else than was trained.
    """
    config, tensors = _read(folder)
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


def _serving_config(draft: Draft) -> dict[str, Any]:
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


def _speculators_config(draft: Draft, verifier: Verifier) -> dict[str, Any]:
    flat = _serving_config(draft)
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


def _their_name(name: str, fmt: str) -> str:
    return name.replace("midlayer.", "layers.0.") if fmt == "speculators" else name


def _our_name(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return config, load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"draft_dir: {folder} holds no readable {CONFIG} and {WEIGHTS} ({error})") from None


def _found(tensors: dict[str, Tensor], folder: Path) -> Vocabulary:
    if not {"d2t", "t2d", "fc.weight"} <= tensors.keys():
        raise ValueError(f"draft_dir: {folder} is not an EAGLE-3 draft: wants d2t, t2d and fc.weight")
    return Vocabulary(tensors["d2t"], tensors["t2d"])


def _shape(config: dict[str, Any], folder: Path) -> DraftShape:
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


def _check_config(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    shape = _shape(config, folder)
    vocabulary = _found(tensors, folder)
    layer = config.get("transformer_layer_config", config)
    claims = {"vocab_size": layer["vocab_size"], "draft_vocab_size": config["draft_vocab_size"]}
    truth = {"vocab_size": vocabulary.target_size, "draft_vocab_size": vocabulary.draft_size}
    if claims != truth or tensors["lm_head.weight"].shape != (vocabulary.draft_size, shape.hidden_size):
        raise ValueError(f"export: {folder / CONFIG} says {claims}, the weights {truth}")


@dataclass(frozen=True)
class ExportSettings(Settings):
    """What to export, and as what."""

    draft_dir: str | None = setting(None, "folder of a trained draft", exists=("folder",))
    out: str | None = setting(None, "folder to write")
    format: str = setting("serving", "whose format", choices=FORMATS)
    target_dir: str | None = setting(
        None, "the target's name or folder, as the export should say it; speculators needs a folder, for its embedding"
    )
    num_drafts: int = setting(3, "tokens that speculators' engines should draft a pass", at_least=1)


@dataclass(frozen=True)
class ExportConfig(Config):
    """All settings of one export."""

    export: ExportSettings = field(default_factory=ExportSettings)


def verifier_of(name: str, num_drafts: int = 3, embedding: bool = False) -> Verifier:
    """The target's architectures, and its ``embedding`` if wanted, from its folder, where ``name`` is a folder."""
    path = Path(name) / CONFIG
    if not path.is_file():
        return Verifier(name, (), num_drafts)
    architectures = json.loads(path.read_text(encoding="utf-8")).get("architectures")
    rows = Target.from_folder(Path(name), torch.float32).hf.get_input_embeddings().weight if embedding else None
    return Verifier(name, tuple(architectures or ()), num_drafts, rows)


def main(argv: list[str]) -> int:
    """Write the other format; returns the exit code."""
    with user_errors("fsdp_lab.eagle.draft.export"):
        settings = checked(ExportConfig, argv, "fsdp_lab.eagle.draft.export").export
        if settings.draft_dir is None or settings.out is None:
            raise ValueError("draft_dir and out: missing; give the folder to read and the folder to write")
        source, out = Path(settings.draft_dir), Path(settings.out)
        if source.resolve() == out.resolve():
            raise ValueError("out: is draft_dir itself; give another folder")
        draft = load_draft(source)
        name = settings.target_dir or _read(source)[0].get("verifier_name", "")
        verifier = verifier_of(name, settings.num_drafts, embedding=settings.format == "speculators")
        save_draft(draft, out, verifier, settings.format)
        print(f"{out}: {settings.format}, logits differ by {check_export(draft, out):.1e} of the largest")
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
