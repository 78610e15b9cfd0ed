"""What the files of a model's folder say about training it on conversations, before any rank starts."""

from __future__ import annotations

from pathlib import Path

_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")


def about_conversations(model_dir: str | None) -> list[str]:
    """Complaints about the folder of a model that is to read conversations."""
    from fsdp_lab.settings.models.masked import folder_is_masked

    if model_dir is None:
        return ["data_format: conversations need the chat template of a saved model; give model_dir"]
    folder = Path(model_dir)
    if folder.is_dir() and folder_is_masked(folder):
        return ["data_format: a masked model answers nobody; give the folder of a GPT-2, Qwen, Llama or MiniCPM"]
    if folder.is_dir() and not _has_template(folder):
        return [f"model_dir: the tokenizer of {folder} has no chat template: add chat_template.jinja to it"]
    return []


def _has_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in _TEMPLATES):
        return True
    try:
        return b'"chat_template"' in (folder / "tokenizer_config.json").read_bytes()
    except OSError:
        return False
