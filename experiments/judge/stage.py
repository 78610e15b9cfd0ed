"""One part of a judgement in a process of its own: it imports the method's file, and writes facts line by line.

    python -m experiments.judge.stage PART FILE METHOD OUT.jsonl [OPTIONS as JSON]

Started by `experiments.judge`, which reads OUT.jsonl and ends this process when it takes too long. Every line is a
JSON object with a ``kind``; an exception becomes the last line, of kind ``raised``.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import comm_compress as cc
from experiments.judge.measures import bytes_by_ranks, errors, laws, rank, speed
from experiments.judge.subject import channels, loading
from experiments.judge.subject.exceptions import said
from experiments.judge.subject.job import Fact, Job
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings

PARTS: dict[str, Callable[[Job], Iterator[Fact]]] = {
    "laws": laws.facts,
    "ranks": bytes_by_ranks.facts,
    "rank": rank.facts,
    "errors": errors.facts,
    "speed": speed.facts,
}


def look(job: Job) -> Iterator[Fact]:
    """What the file registers, and what the method says of itself; ``refused`` where nothing can be judged."""
    try:
        label = loading.chosen(job.loaded.names, job.method or None, job.file)
        if job.options.get("settings"):
            label = cc.labels.label(label, job.options["settings"])
        named = job.with_method(label)
        compressor = named.make()
        if not compressor.traits.for_gradients:
            raise ValueError(f"{label}: is not for gradients (Traits.for_gradients), which is what is judged here")
    except ValueError as error:
        yield {"kind": "refused", "why": str(error)}
        return
    traits = {name: getattr(compressor.traits, name) for name in ("unbiased", "lossless", "additive", "sparse")}
    declared = compressor.traffic(1 << 16, 2)
    yield {
        "kind": "look",
        "method": label,
        "name": compressor.name,
        "settings": compressor.settings,
        "about": (type(named.bare()).__doc__ or "").strip().split("\n")[0].replace("`", ""),
        "traits": traits,
        "max_ranks": compressor.traits.max_ranks,
        "is_codec": isinstance(named.bare(), cc.Codec),
        "size_depends_on_data": declared is None,
    }


def main(argv: Sequence[str]) -> int:
    """Run one part; 0 when it came to its end, whatever it found."""
    parser = program("experiments.judge.stage", __doc__)
    parser.add_argument("part", choices=["look", *PARTS])
    for name in ("file", "method", "out"):
        parser.add_argument(name, metavar={"out": "OUT.jsonl"}.get(name, name.upper()))
    parser.add_argument("options", nargs="?", default="{}", metavar="OPTIONS", help="a JSON object")
    given = parser.parse_args(argv)
    file = Path(given.file)
    with Path(given.out).open("w", buffering=1) as lines:

        def write(fact: Fact) -> None:
            lines.write(json.dumps(fact, default=str) + "\n")

        try:
            library = channels.library()
            job = Job(file, given.method, loading.load(file), library, json.loads(given.options))
            for fact in {"look": look, **PARTS}[given.part](job):
                write(fact)
        except BaseException as error:  # whatever a stranger's code raises, SystemExit among it
            write({"kind": "raised", "why": said(error, file)})
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
