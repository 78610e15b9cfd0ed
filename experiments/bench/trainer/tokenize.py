"""How fast a big file becomes token shards, and in how much memory.

    fsdp-lab bench tokenize --mb 500

Makes a JSON array of that size out of the embedded corpus (its sentences drawn anew for every document, so that
documents differ), tokenises it in a process of its own, and measures single-threaded encoding as a yardstick.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fsdp_lab.data import WIKI_LEADS, read_documents
from fsdp_lab.settings.flag_values import whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings

_CHILD = """
import json, resource, sys, time
from pathlib import Path
from fsdp_lab.data.tokens.tokenization import tokenize
from fsdp_lab.data.tokens.tokenizer import load_tokenizer
path, cache = map(Path, sys.argv[1:])
tokenizer = load_tokenizer()
start = time.perf_counter()
corpus = tokenize(path, tokenizer, cache)
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "tokens": corpus.num_tokens("train") + corpus.num_tokens("val"),
    "rss_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""

_YARDSTICK = """
import json, sys, time
from pathlib import Path
from fsdp_lab.data.reading.documents import read_documents
from fsdp_lab.data.tokens.tokenizer import load_tokenizer
texts = [document.full_text for document in read_documents(Path(sys.argv[1]))]
core = load_tokenizer().core
start = time.perf_counter()
for text in texts:
    core.encode(text)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "bytes": sum(len(text.encode()) for text in texts)}))
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print one line a measurement."""
    parser = program("experiments.bench.trainer.tokenize", __doc__, allow_abbrev=False)
    parser.add_argument("--mb", type=whole(1), default=500, help="size of the file in MB (10^6 bytes)")
    parser.add_argument("--sample_mb", type=whole(1), default=10, help="size of the yardstick's file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), options.mb, options.sample_mb)
    return 0


def write_synthetic(path: Path, num_bytes: int, seed: int = 0) -> None:
    """Write a JSON array of about `num_bytes`: documents of 5 to 60 paragraphs drawn from the embedded corpus."""
    leads = [document.text for document in read_documents(WIKI_LEADS)]
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        written = number = 0
        while written < num_bytes:
            text = "\n".join(draw.choices(leads, k=draw.randint(5, 60)))
            entry = json.dumps({"id": str(number), "title": f"Document {number}", "text": text}, ensure_ascii=False)
            file.write(("[\n" if number == 0 else ",\n") + entry)
            written += len(entry.encode())
            number += 1
        file.write("\n]\n")


def _measure(folder: Path, num_mb: int, sample_mb: int) -> None:
    data, sample = folder / "data.json", folder / "sample.json"
    write_synthetic(data, num_mb * 10**6)
    write_synthetic(sample, sample_mb * 10**6, seed=1)
    size = data.stat().st_size
    start = time.perf_counter()
    run = _python(_CHILD, data, folder / "cache")
    wall = time.perf_counter() - start
    mb_s, tokens_s = size / 1e6 / run["seconds"], run["tokens"] / 1e6 / run["seconds"]
    print(f"tokenize:  {size / 1e6:.0f} MB in {run['seconds']:.1f} s ({wall:.1f} s with start-up): "
          f"{mb_s:.1f} MB/s, {tokens_s:.2f}M tokens/s, peak RSS {run['rss_kib'] / 1024:.0f} MiB")  # fmt: skip
    yardstick = _python(_YARDSTICK, sample)
    encode_mb_s = yardstick["bytes"] / 1e6 / yardstick["seconds"]
    print(f"yardstick: {encode_mb_s:.1f} MB/s, tokenizers.Tokenizer.encode in a loop, one thread")


def _python(program: str, *paths: Path) -> dict[str, float]:
    """Run a program in a Python process; the JSON object that it prints last."""
    command = [sys.executable, "-c", program, *map(str, paths)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
