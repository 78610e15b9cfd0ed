"""Questions about the articles of the embedded corpus: JSON lines of conversations that nobody has answered yet.

python -m experiments.drafts.questions --count 2000 --out fsdp_output/drafts

Three files: questions to train on, to choose a draft with, and to judge it with. Half of them name an article, half
show its first sentences. No article is asked about twice.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsdp_lab.data.sources.embedded_files import WIKI_LEADS
from fsdp_lab.files.atomic import make_folder, write_bytes
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

TEMPLATES = (
    "Tell me about {title}.",
    "Summarize this text in one sentence: {text}",
    "What is {title} known for?",
    "Explain this text to a child: {text}",
    "Give me three facts about {title}.",
    "Write a question about this text, and its answer: {text}",
    "Write a short paragraph about {title}.",
    "Name the most important words of this text, and say what they mean: {text}",
)
_SHOWN = 400  # characters of an article
NAMES = ("training", "choice", "held_out")


def questions(count: int, choice: int, held_out: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Conversations with one question each, by `NAMES`. ValueError when there are not that many articles."""
    with gzip.open(WIKI_LEADS) as file:
        articles = json.load(file)
    random.Random(seed).shuffle(articles)
    by_name, first = {}, 0
    # training comes last: with another count the others stay
    for name, some in (("held_out", held_out), ("choice", choice), ("training", count)):
        by_name[name] = [_question(i, article) for i, article in enumerate(articles[first : first + some])]
        first += some
    if first > len(articles):
        raise ValueError(f"count, choice, held_out: {first:,} questions, but there are {len(articles):,} articles")
    return by_name


def file_of(folder: Path, name: str) -> Path:
    """Where `main` writes the questions of one of `NAMES`."""
    return folder / f"questions_{name}.jsonl"


def _question(i: int, article: dict[str, str]) -> dict[str, Any]:
    text = textwrap.shorten(article["text"], _SHOWN, placeholder=" ...")
    value = TEMPLATES[i % len(TEMPLATES)].format(title=article["title"], text=text)
    return {"id": article["id"], "conversations": [{"from": "human", "value": value}]}


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write conversations to a file, one line each."""
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def main(argv: list[str]) -> int:
    """Write the three files; returns the exit code."""
    parser = program("experiments.drafts.questions", __doc__)
    parser.add_argument("--count", type=whole(1), default=2000, help="questions to train on")
    parser.add_argument("--choice", type=whole(0), default=32, help="questions to choose a draft with")
    parser.add_argument("--held_out", type=whole(0), default=200, help="questions to judge with")
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of the articles' order")
    parser.add_argument("--out", type=new_folder, default=Path("fsdp_output/drafts"), help="folder to write to")
    arguments = parser.parse_args(argv)
    with user_errors("experiments.drafts.questions"):
        if min(arguments.count, arguments.choice, arguments.held_out) < 1:
            raise ValueError("count, choice, held_out: at least 1 each")
        by_name = questions(arguments.count, arguments.choice, arguments.held_out, arguments.seed)
        make_folder(arguments.out, "out")
        for name, rows in by_name.items():
            write(file_of(arguments.out, name), rows)
            print(f"{file_of(arguments.out, name)}: {len(rows):,} questions")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
