"""A trained model, and another text to fine-tune it on: what experiments/recipes/pretrained/lora.yaml starts from.

    python -m experiments.finetuning                     # into fsdp_output/finetuning, some minutes on two cores
    python -m experiments.finetuning -- --max_steps 50   # after --: flags of fsdp_lab.train, for the trained model

The embedded corpus is divided by what an article's first sentence says its subject is: a town, a river, a province and
the like (about a fourteenth of all), or anything else. gpt2-mini is trained on the rest, and has seen no article of the
first kind: OUT/places.jsonl.gz and OUT/rest.jsonl.gz, OUT/runs/base/final_model.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.runs.training import torchrun
from fsdp_lab.data.sources.embedded_files import WIKI_LEADS
from fsdp_lab.files.atomic import make_folder, write_bytes
from fsdp_lab.settings.flag_values import new_folder
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

Articles = list[dict[str, str]]
OUT = Path("fsdp_output/finetuning")
_PLACE = re.compile(r"\b(town|city|village|river|municipality|county|province)\b", re.IGNORECASE)
_RECIPE = {"model": "gpt2-mini", "max_steps": 400, "val_fraction": 0.01, "run_name": "base", "resume": "never"}


def divided(articles: Articles) -> tuple[Articles, Articles]:
    """The articles about places, and all others, in the order that they came in."""
    places = [article for article in articles if _is_place(article)]
    return places, [article for article in articles if not _is_place(article)]


def _is_place(article: dict[str, str]) -> bool:
    return _PLACE.search(article["text"].split(". ")[0]) is not None


def write_texts(out: Path) -> tuple[Path, Path]:
    """Writes both texts into the folder ``out``; the paths of ``places.jsonl.gz`` and ``rest.jsonl.gz``."""
    with gzip.open(WIKI_LEADS) as file:
        parts = divided(json.load(file))
    paths = out / "places.jsonl.gz", out / "rest.jsonl.gz"
    for path, articles in zip(paths, parts, strict=True):
        lines = "".join(json.dumps(article, ensure_ascii=False) + "\n" for article in articles)
        write_bytes(path, gzip.compress(lines.encode(), mtime=0))
        print(f"{path}: {len(articles):,} articles")
    return paths


def main(argv: Sequence[str]) -> int:
    """Writes the texts and trains the model; the exit code is the training's."""
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    parser = program("experiments.finetuning", __doc__)
    parser.add_argument("--out", type=new_folder, default=OUT, help=f"folder for all of it (default: {OUT})")
    with user_errors("experiments.finetuning"):
        out = parser.parse_args(words[:split]).out
        make_folder(out, "out")
        _, rest = write_texts(out)
    where = {"data_path": rest, "output_dir": out, "results_path": out / "base.jsonl"}
    flags = [word for name, value in (_RECIPE | where).items() for word in (f"--{name}", str(value))]
    return torchrun("fsdp_lab.train", [*flags, *words[split + 1 :]], ranks=2).returncode


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
