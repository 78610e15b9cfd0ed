"""Conversations as training data: show samples, make the draft's vocabulary, have the target answer every question.

python -m fsdp_lab.eagle.data show FILE --target_dir DIR          # a sample, the assistant's tokens in green
python -m fsdp_lab.eagle.data scandata FILE --target_dir DIR --out vocabulary.safetensors --draft_vocab_size 16000
python -m fsdp_lab.eagle.data regenerate FILE --target_dir DIR --out own.jsonl     # every answer anew, by the target
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from fsdp_lab.eagle.data.tokens import Examples, coloured, load_chat_tokenizer, load_examples, vocabulary_of
from fsdp_lab.models.architectures.config_json import read_config_json
from fsdp_lab.models.saved.tokenizers import check_ids
from fsdp_lab.settings.flag_values import a_file, real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_pipes, user_errors


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


def _add_show_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--max_length", type=whole(1), default=2048, help="tokens of a conversation that are kept")
    command.add_argument("--count", type=whole(1), default=1, help="samples to print")
    command.add_argument("--colour", action="store_true", help="colours also where it is no terminal")


def _add_scan_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--max_length", type=whole(1), default=2048, help="tokens of a conversation that are kept")
    command.add_argument("--out", required=True, help="file to write")
    command.add_argument("--draft_vocab_size", type=whole(1), default=16000, help="tokens that the draft knows")


def _add_regenerate_flags(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--out", required=True, help="file to write, or to go on with")
    add("--max_new_tokens", type=whole(1), default=256, help="tokens of an answer at most")
    add("--temperature", type=real(at_least=0), default=0.0, help="0: always the most likely token")
    add("--batch_size", type=whole(1), default=8, help="conversations at once")
    add("--seed", type=whole(0), default=42, help="seed of the drawing")
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="dtype of the target")


_COMMANDS = (  # name, function, its flags, help
    ("show", _show, _add_show_flags, "print samples"),
    ("scandata", _scan, _add_scan_flags, "make the draft's vocabulary"),
    ("regenerate", _regenerate, _add_regenerate_flags, "have the target answer every question"),
)


def main(argv: list[str]) -> int:
    """Runs ``show``, ``scandata`` or ``regenerate``; returns the exit code."""
    parser = program("fsdp_lab.eagle.data", "Conversations as training data.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, add_flags, text in _COMMANDS:
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run)
        command.add_argument("file", type=a_file, help="JSON lines of conversations")
        command.add_argument("--target_dir", required=True, help="folder of the target, for its tokenizer")
        add_flags(command)
    with user_errors("fsdp_lab.eagle.data"):
        arguments = parser.parse_args(argv)
        arguments.run(arguments)
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
