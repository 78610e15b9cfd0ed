"""Your own compression method on the chart: laws, bytes, error, speed, short trainings, as one page.

    python -m experiments.judge my_method.py [--settings '{"ratio": 0.01}' | --method "my_method ratio=0.01"]
        [--out FOLDER] [--seeds 3] [--quick] [--no_training] [--anyway]

my_method.py registers a method of gradients (docs/library/plugins.md). THE FILE IS RUN: a method is a program with all
rights that you have, so judge only code that you would run. It runs in processes of their own, which are ended when
they take too long (--limit), and which do not protect this machine or the figures from who means harm
(docs/library/judging.md).

FOLDER (default: judged/NAME) gets index.html, judged.json with the same facts, and results rows. Trainings are those of
experiments/recipes/_reference.yaml (gpt2-mini, two ranks, 400 steps), with and without the method, and need the corpus
"prose"; they are left out when a law or a check is broken, unless --anyway. A second call goes on with the first one's
rows. About 10 minutes on two idle cores, 5 with --quick (one seed: no interval).

Exit code 0: all laws and checks hold. 1: one is broken, or something broke or did not end in time. 2: bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import comm_compress as cc
from experiments.judge import children, trainings
from experiments.judge.objections import objections
from fsdp_lab.files.atomic import make_folder
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.flag_values import a_file, a_folder, new_file, new_folder, real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors

Fact = dict[str, Any]
PARTS = {"laws": "laws", "ranks": "bytes on real ranks", "errors": "what arrives", "speed": "time to encode and decode"}
SIZES = {False: {"elements": 1 << 18, "mib": 16, "repeats": 9}, True: {"elements": 1 << 16, "mib": 4, "repeats": 5}}
_LOOK_S = 60


def main(argv: Sequence[str]) -> int:
    """Judge one method; the exit code."""
    options = _parser().parse_args(argv)
    start = time.monotonic()
    with user_errors("judge"):
        file = options.file.resolve()
        if not options.no_training and (why := trainings.corpus_missing()):
            raise ValueError(why)
        if options.method is not None:
            cc.labels.parse_label(options.method)  # what cannot be read is refused now
        out = (options.out or Path("judged") / file.stem).resolve()
        parts = out / "parts"
        make_folder(parts, "out")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        rows = out / f"rows-{digest[:8]}.jsonl"  # of this text of the file: another one is another method
        look, late = _look(file, options, parts)
    facts: dict[str, list[Fact]] = {part: [] for part in PARTS}
    if not late:
        facts = _measured(options, file, look["method"], parts, out)
    broken = [late] if late else _broken(facts)
    why_not = _trained(options, file, look, rows, broken) if not late else "the file could not be read in time"
    report = {
        "file": file.name,
        "sha256": digest,
        "look": look,
        "facts": facts,
        "broken": broken,
        "objections": [list(pair) for pair in objections(facts, look)] if not late else [],
        "trainings": {
            "rows": str(rows),
            "baseline": str(_baseline(options, out)),
            "reference": str(trainings.REFERENCE),
            "why_not": why_not,
        },
        "machine": hardware(),
        "versions": versions(),
        "command": f"fsdp-lab judge {' '.join(argv)}",
        "seconds": round(time.monotonic() - start, 1),
    }
    (out / "facts.json").write_text(json.dumps(report, indent=1) + "\n")
    code = trainings.page(out)
    for line in broken:
        print(f"broken: {printable(line)}", file=sys.stderr)
    return 1 if broken or code or (why_not and not options.no_training) else 0


def _parser() -> argparse.ArgumentParser:
    parser = program("experiments.judge", __doc__)
    parser.add_argument("file", type=a_file, metavar="my_method.py")
    said = parser.add_mutually_exclusive_group()
    said.add_argument("--settings", type=_settings, metavar="JSON", help="of the method, where the file has only one")
    said.add_argument("--method", metavar="LABEL", help='its name, or a label such as "my_method ratio=0.01"')
    parser.add_argument("--out", type=new_folder, metavar="FOLDER", help="default: judged/<name of the file>")
    parser.add_argument("--seeds", type=whole(1, 12), default=3, metavar="N", help="trainings: seeds 1 to N (3)")
    parser.add_argument("--quick", action="store_true", help="one seed, smaller measurements")
    parser.add_argument("--no_training", action="store_true", help="laws and measurements alone")
    parser.add_argument("--anyway", action="store_true", help="train also when a law or a check is broken")
    parser.add_argument("--baseline", type=new_file(".jsonl"), metavar="FILE", help="rows of none, kept and used again")
    parser.add_argument("--gradients", type=a_folder, metavar="FOLDER", help="captured ones (fidelity capture)")
    parser.add_argument("--limit", type=real(above=0), default=300, metavar="S", help="seconds for each part (300)")
    parser.add_argument("--training_limit", type=real(above=0), default=3600, metavar="S", help="for each arm (3600)")
    return parser


def _settings(text: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except ValueError as error:
        raise ValueError(f'wants a JSON object such as {{"ratio": 0.01}} ({error})') from None
    if not isinstance(loaded, dict):
        raise ValueError('wants a JSON object such as {"ratio": 0.01}')
    return loaded


def _look(file: Path, options: argparse.Namespace, parts: Path) -> tuple[Fact, str]:
    """What the file registers; the second text says what did not end. ValueError for what cannot be judged."""
    given = {"settings": options.settings or {}}
    facts = children.run_part("look", file, options.method or "", parts, min(_LOOK_S, options.limit), given)
    last = facts[-1] if facts else {"kind": "raised", "why": "its process wrote nothing"}
    if last["kind"] == "late":
        return {}, f"importing {file.name} {last['why']}"
    if last["kind"] == "refused":
        raise ValueError(last["why"])
    if last["kind"] == "raised":
        raise ValueError(f"{file.name} cannot be imported: {last['why']}")
    return last, ""


def _measured(options: argparse.Namespace, file: Path, method: str, parts: Path, out: Path) -> dict[str, list[Fact]]:
    """The facts of every part. One that fails leaves the others as they are."""
    gradients: Path | None = options.gradients
    if gradients is None and not options.no_training:
        captured = _baseline(options, out).parent / "gradients_of_a_training"
        _say("real gradients of a short training")
        why = trainings.capture(captured, options.limit)
        if why:
            _say(why)
        gradients = None if why else captured
    given: Mapping[str, Any] = {
        **SIZES[options.quick],
        "folder": str(parts),
        "limit_s": options.limit,
        "gradients": str(gradients) if gradients else "",
    }
    facts = {}
    for part, text in PARTS.items():
        _say(text)
        limit = options.limit + (30 if part == "ranks" else 0)  # the ranks have their own, and are to say so
        facts[part] = children.run_part(part, file, method, parts, limit, given)
    return facts


def _trained(options: argparse.Namespace, file: Path, look: Fact, rows: Path, broken: Sequence[str]) -> str:
    """Train, unless that makes no sense; why not, or what went wrong."""
    if options.no_training:
        return "left out (--no_training)"
    if broken and not options.anyway:
        return "left out, because a law or a check is broken; --anyway trains all the same"
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    _say(f"trainings with {len(seeds)} seed{'s' * (len(seeds) > 1)}: minutes")
    name, settings = cc.labels.parse_label(look["method"])
    baseline = _baseline(options, rows.parent)
    return trainings.run(file, name, settings, rows, baseline, seeds, options.training_limit)


def _broken(facts: Mapping[str, Sequence[Fact]]) -> list[str]:
    """A line for every law and check that does not hold, and for every part that broke or did not end."""
    lines = []
    for part, of_part in facts.items():
        for fact in of_part:
            if fact["kind"] in ("law", "check") and not fact["holds"]:
                lines.append(f"{fact['name']}: {fact['message']}")
            elif fact["kind"] in ("late", "raised"):
                lines.append(f"{PARTS[part]}: {fact['why']}")
    return lines


def _baseline(options: argparse.Namespace, out: Path) -> Path:
    return (options.baseline or out.parent / "none.jsonl").resolve()


def _say(text: str) -> None:
    print(f"judge: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
