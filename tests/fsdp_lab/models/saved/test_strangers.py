"""What a folder from a stranger cannot do: run its code, take memory for sizes that its weights do not have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_lab.eagle.data import __main__ as conversations
from fsdp_lab.eagle.data.tokens import load_chat_tokenizer
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.models.build import load_pretrained
from tests.fsdp_lab.eagle.tiny import save_target
from tests.terminal import forked_on_terminal

CODE = {
    "AutoConfig": "evil.Config",
    "AutoModelForCausalLM": "evil.Model",
    "AutoTokenizer": [None, "evil.Tokenizer"],
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A usable target with a tokenizer."""
    return save_target(tmp_path_factory.mktemp("strangers") / "target")


def with_code(target: Path, folder: Path, model_type: str, tokenizer_class: str | None) -> Path:
    """A folder whose Python leaves a file ``sprung`` in it."""
    shutil.copytree(target, folder)
    trap = f"open({str(folder / 'sprung')!r}, 'w')\nclass Config: ...\nclass Model: ...\nclass Tokenizer: ...\n"
    (folder / "evil.py").write_text(trap)
    change(folder / "config.json", model_type=model_type, auto_map=CODE)
    change(folder / "tokenizer_config.json", tokenizer_class=tokenizer_class, auto_map=CODE)
    return folder


def change(path: Path, **values: Any) -> None:
    found = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


@pytest.mark.parametrize(
    ("model_type", "tokenizer_class", "usable"),
    [("llama", "PreTrainedTokenizerFast", True), ("strange", "StrangeTokenizer", False)],
)
def test_code_of_a_folder_is_never_run_even_when_someone_says_yes(
    target: Path, tmp_path: Path, model_type: str, tokenizer_class: str, usable: bool
) -> None:
    folder = with_code(target, tmp_path / "model", model_type, tokenizer_class)
    chats = tmp_path / "chats.jsonl"
    turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "an answer"}]
    chats.write_text(json.dumps({"conversations": turns}) + "\n")
    asked = ["regenerate", str(chats), "--target_dir", str(folder), "--out", str(tmp_path / "out.jsonl")]
    code, written = forked_on_terminal(conversations.main, [*asked, "--max_new_tokens", "4"], at_once=9 * "y\n")
    assert not (folder / "sprung").exists(), written
    assert code == (0 if usable else 2), written
    assert "Traceback" not in written
    assert "trust_remote_code" not in written
    assert usable or "is never run" in written


def test_code_is_refused_by_name_in_every_reader(target: Path, tmp_path: Path) -> None:
    folder = with_code(target, tmp_path / "model", "strange", "StrangeTokenizer")
    readers = (load_pretrained, lambda path: Target.from_folder(path, torch.float32), load_chat_tokenizer)
    for read in readers:
        with pytest.raises(ValueError, match=r"auto_map.* never run"):
            read(folder)
    assert not (folder / "sprung").exists()


SIZES: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 0}, "hidden_size is 0, wants a whole number of 1 to"),
    ({"hidden_size": 1_000_000, "num_hidden_layers": 100_000}, "num_hidden_layers is 100000"),
    ({"hidden_size": 1_000_000}, "config.json"),
    ({"hidden_size": 10**400}, "too large for a whole number of 64 bits"),
    ({"vocab_size": 16_000_000}, "config.json"),
    ({"num_hidden_layers": 1000}, "config.json says 1,000 blocks, the files hold 30 tensors"),
    ({"num_attention_heads": 3.5}, "num_attention_heads is 3.5"),
    ({"head_dim": True}, "head_dim is True"),
    ({"num_attention_heads": 5, "head_dim": 7}, "config.json"),
    ({"hidden_act": "nothing"}, "config.json.*KeyError|nothing"),
    ({"_attn_implementation": "someone/kernel"}, "never used"),
    ({"rope_parameters": {"rope_type": "nothing"}}, "config.json"),
    ({"rope_parameters": 7}, "config.json"),
    ({"architectures": 7, "to_dict": 8}, "."),
]


@pytest.mark.parametrize(("changed", "words"), SIZES)
def test_settings_that_no_model_has_are_refused_before_memory_is_taken(
    target: Path, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    shutil.copytree(target, tmp_path / "model")
    change(tmp_path / "model" / "config.json", **changed)
    for flag, read in (("model_dir", load_pretrained), ("target_dir", lambda f: Target.from_folder(f, torch.float32))):
        before = torch.get_default_dtype()
        with pytest.raises(ValueError, match=rf"{flag}: .*({words})"):
            read(tmp_path / "model")
        assert torch.get_default_dtype() == before


def test_a_config_that_is_no_configuration(target: Path, tmp_path: Path) -> None:
    shutil.copytree(target, tmp_path / "model")
    for text in ("[" * 100_000, "[]", '{"hidden_size": ' + "9" * 5000 + "}", "{" + " " * (17 << 20) + "}"):
        (tmp_path / "model" / "config.json").write_text(text)
        for read in (load_pretrained, lambda f: Target.from_folder(f, torch.float32)):
            with pytest.raises(ValueError, match=r"config\.json cannot be used"):
                read(tmp_path / "model")
