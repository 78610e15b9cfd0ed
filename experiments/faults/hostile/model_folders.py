"""Model folders, as the model of a chat and as EAGLE's target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from experiments.faults.hostile.case import Case, Make
from experiments.faults.hostile.tiny_model import change, save_model

Spoil = Callable[[Path], None]
_CODE = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": [None, "evil.Tokenizer"]}


def _config(**values: Any) -> Spoil:
    return lambda model: change(model / "config.json", **values)


def _text(name: str, text: str) -> Spoil:
    def spoil(model: Path) -> None:
        (model / name).write_text(text, encoding="utf-8")

    return spoil


def _brings_code(model: Path) -> None:
    trap = f"open({str(model / 'sprung')!r}, 'w')\nclass Config: ...\nclass Model: ...\nclass Tokenizer: ...\n"
    (model / "evil.py").write_text(trap, encoding="utf-8")
    change(model / "config.json", model_type="strange", auto_map=_CODE)
    change(model / "tokenizer_config.json", tokenizer_class="StrangeTokenizer", auto_map=_CODE)


def _weights(changed: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Spoil:
    def spoil(model: Path) -> None:
        path = model / "model.safetensors"
        save_file(changed(load_file(path)), path, metadata={"format": "pt"})

    return spoil


def _long_header(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + path.read_bytes()[8:])


def _cut_off(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _pickled(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin")


def _other_file(model: Path) -> None:
    (model / "model.safetensors").rename(model.parent / "model.safetensors")
    index = {"weight_map": {"lm_head.weight": "../model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _sparse_minicpm(model: Path) -> None:
    change(model / "config.json", model_type="minicpm", sparse_config={"dense_len": 8192})


def _chat(spoil: Spoil) -> Make:
    def make(folder: Path) -> list[str]:
        spoil(save_model(folder / "model"))
        return ["fsdp_lab.chat", "--model_dir", str(folder / "model"), "--prompt", "hello you", "--max_new_tokens", "2"]

    return make


def _target(spoil: Spoil) -> Make:
    def make(folder: Path) -> list[str]:
        turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "an answer"}]
        (folder / "chats.jsonl").write_text(json.dumps({"conversations": turns}) + "\n", encoding="utf-8")
        spoil(save_model(folder / "model"))
        asked = [str(folder / "chats.jsonl"), "--target_dir", str(folder / "model"), "--out", str(folder / "own.jsonl")]
        return ["fsdp_lab.eagle.data", "regenerate", *asked, "--max_new_tokens", "2"]

    return make


_SPOILT: dict[str, tuple[Spoil, str]] = {
    "code of its own": (_brings_code, "never run"),
    "a width of 0": (_config(hidden_size=0), "hidden_size is 0, wants a whole number"),
    "a width of 1,000,000 in 100,000 blocks": (
        _config(hidden_size=1_000_000, num_hidden_layers=100_000),
        "num_hidden_layers is 100000, wants",
    ),
    "a width of 1,000,000": (_config(hidden_size=1_000_000), "config.json"),
    "1,000 blocks": (_config(num_hidden_layers=1000), "says 1,000 blocks, the files hold"),
    "a vocabulary of 16 million": (_config(vocab_size=16_000_000), "config.json"),
    "settings nested 100,000 deep": (_text("config.json", "[" * 100_000), "nested too deeply"),
    "an attention that would be fetched": (_config(_attn_implementation="someone/kernel"), "never used"),
    "an activation that nobody has": (_config(hidden_act="nothing"), "no model can be built"),
    "a header of 2^60 bytes": (_long_header, "model.safetensors cannot be read|cannot be loaded"),
    "weights cut off": (_cut_off, "cannot be read"),
    "a tensor missing": (
        _weights(lambda w: {k: v for k, v in w.items() if k != "model.norm.weight"}),
        "no tensor for model.norm.weight|the files hold",
    ),
    "weights as a pickle": (_pickled, "pickles, which can run code"),
    "an index that names a file elsewhere": (_other_file, "not a file of its folder"),
    "sparse attention (MiniCPM)": (_sparse_minicpm, "sparse_config: sparse attention"),
    "a tokenizer that is a list": (_text("tokenizer.json", "[]"), "tokenizer"),
    "a tokenizer's settings nested 100,000 deep": (_text("tokenizer_config.json", "[" * 100_000), "tokenizer"),
}


def _few_tokens(model: Path) -> None:
    def cut(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ends = ("embed_tokens.weight", "lm_head.weight")
        return {name: tensor[:200].clone() if name.endswith(ends) else tensor for name, tensor in weights.items()}

    _weights(cut)(model)
    change(model / "config.json", vocab_size=200)


_SPOILT["fewer tokens than its tokenizer has"] = (_few_tokens, "the model has 200 of them")
CASES = [
    Case("model folders", f"{name}: {reader}", make(spoil), says, never=("model/sprung",))
    for name, (spoil, says) in _SPOILT.items()
    for reader, make in (("chat", _chat), ("target", _target))
]
