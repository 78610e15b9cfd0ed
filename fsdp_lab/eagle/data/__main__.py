"""Conversations as training data: show samples, make the draft's vocabulary, have the target answer every question.

python -m fsdp_lab.eagle.data show FILE --target_dir DIR          # a sample, the assistant's tokens in green
python -m fsdp_lab.eagle.data scandata FILE --target_dir DIR --out vocabulary.safetensors --draft_vocab_size 16000
python -m fsdp_lab.eagle.data regenerate FILE --target_dir DIR --out own.jsonl     # every answer anew, by the target
"""

from __future__ import annotations

import argparse
import sys

from fsdp_lab.settings.flag_values import a_file, real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors


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


_COMMANDS = (  # name, its flags, help
    ("show", _add_show_flags, "print samples"),
    ("scandata", _add_scan_flags, "make the draft's vocabulary"),
    ("regenerate", _add_regenerate_flags, "have the target answer every question"),
)


def main(argv: list[str]) -> int:
    """Runs ``show``, ``scandata`` or ``regenerate``; returns the exit code."""
    parser = program("fsdp_lab.eagle.data", "Conversations as training data.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, add_flags, text in _COMMANDS:
        command = commands.add_parser(name, help=text)
        command.add_argument("file", type=a_file, help="JSON lines of conversations")
        command.add_argument("--target_dir", required=True, help="folder of the target, for its tokenizer")
        add_flags(command)
    with user_errors("fsdp_lab.eagle.data"):
        arguments = parser.parse_args(argv)
        from fsdp_lab.eagle.data.actions import ACTIONS  # torch and tokenizers: not for --help

        ACTIONS[arguments.command](arguments)
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
