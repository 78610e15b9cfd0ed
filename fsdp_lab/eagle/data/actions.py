"""What ``python -m fsdp_lab.eagle.data`` does with the flags of each of its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fsdp_lab.data.chats.examples import Examples
from fsdp_lab.eagle.data.tokens import coloured, load_chat_tokenizer, load_examples, vocabulary_of
from fsdp_lab.models.architectures.config_json import read_config_json
from fsdp_lab.models.saved.tokenizers import check_ids


def _show(arguments: argparse.Namespace) -> None:
    tokenizer = load_chat_tokenizer(Path(arguments.target_dir))
    loaded = load_examples(Path(arguments.file), tokenizer, arguments.max_length)
    for example in loaded.examples[: arguments.count]:
        print(f"--- {example.name}: {len(example.tokens)} tokens, {int(example.said.sum())} said by the assistant")
        print(coloured(example, tokenizer, sys.stdout.isatty() or arguments.colour))
    _print_summary(loaded)


def _print_summary(loaded: Examples) -> None:
    tokens = sum(len(e.tokens) for e in loaded.examples)
    said = sum(int(e.said.sum()) for e in loaded.examples)
    print(f"{len(loaded.examples):,} conversations, {tokens:,} tokens, {said:,} of them the assistant's")
    for line in loaded.skipped.lines():
        print(line)


def _scan(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.target_dir)
    tokenizer = load_chat_tokenizer(folder)
    loaded = load_examples(Path(arguments.file), tokenizer, arguments.max_length)
    size = read_config_json(folder, "target_dir").get("vocab_size")
    if size is None:
        raise ValueError(f"target_dir: {folder / 'config.json'} names no vocab_size")
    check_ids(loaded.largest_ids(), size, "target_dir")
    vocabulary, covered = vocabulary_of(loaded, tokenizer, size, arguments.draft_vocab_size)
    vocabulary.save(Path(arguments.out))
    _print_summary(loaded)
    print(
        f"{vocabulary.draft_size:,} of {size:,} tokens cover {covered:.2%} of what the assistant says: {arguments.out}"
    )


def _regenerate(arguments: argparse.Namespace) -> None:
    from fsdp_lab.eagle.data.regenerate import AnswerSettings, Regeneration  # these need the whole model
    from fsdp_lab.eagle.draft.target import Target

    answering = AnswerSettings(arguments.max_new_tokens, arguments.temperature, arguments.batch_size, arguments.seed)
    folder, out = Path(arguments.target_dir), Path(arguments.out)
    if out.exists() and out.samefile(arguments.file):
        raise ValueError("out: is the file of conversations itself; give another one")
    tokenizer = load_chat_tokenizer(folder)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.dtype]
    hf = Target.from_folder(folder, dtype).hf.to("cuda" if torch.cuda.is_available() else "cpu")
    work = Regeneration(hf, tokenizer, answering, Path(arguments.file), out)
    work.run(lambda line: print(line, flush=True))
    answers, cut_off = work.answers()
    print(f"{answers:,} answers in {out}, {cut_off:,} of them cut off at {answering.max_new_tokens} tokens")
    for line in work.skipped.lines():
        print(line)


ACTIONS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "show": _show,
    "scandata": _scan,
    "regenerate": _regenerate,
}
"""By the command's name."""
