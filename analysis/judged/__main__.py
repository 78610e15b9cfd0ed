"""The page about a judged method, from what `experiments.judge` measured.

    python -m analysis.judged FOLDER/facts.json [--out FOLDER]

`experiments.judge` calls it at its end; by hand it makes the page again, for example after more reference rows. Writes
index.html (one page, readable without a network) and judged.json: the same facts, the place among the reference rows,
and what makes the comparison unfair. Needs no torch, and runs nothing of the method.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.judged.place import Place, otherwise_in_training, place
from fsdp_lab.settings.flag_values import a_file, new_folder
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Write the page; 0, whatever it says."""
    parser = program("analysis.judged", __doc__)
    parser.add_argument("facts", type=a_file, metavar="facts.json")
    parser.add_argument("--out", type=new_folder, metavar="FOLDER", help="default: that of facts.json")
    options = parser.parse_args(argv)
    from analysis.judged import page  # these need matplotlib, --help and wrong flags do not
    from analysis.report.pages import html

    with user_errors("judged"):
        facts = _read(options.facts)
        out: Path = options.out or options.facts.parent
        out.mkdir(parents=True, exist_ok=True)
        placed, why_not = _placed(facts)
        facts["objections"] = [*facts["objections"], *otherwise_in_training(facts, placed)]
        whole = page.document(facts, placed, why_not, out)
        (out / "index.html").write_text(html.render(whole, out, page.FORMATS))
        (out / "judged.json").write_text(json.dumps(_with_place(facts, placed, why_not), indent=1) + "\n")
    print("\n".join(map(printable, page.sentences(facts, placed, why_not))))
    print(out / "index.html")
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON ({error})") from None
    if not isinstance(facts, dict) or not {"facts", "look", "broken", "objections", "trainings"} <= facts.keys():
        raise ValueError(f"{path}: was not written by fsdp-lab judge")
    return facts


def _placed(facts: dict[str, Any]) -> tuple[Place | None, str]:
    """The place among the reference rows, or None and the reason."""
    trained = facts["trainings"]
    if trained["why_not"]:
        return None, trained["why_not"]
    files = [Path(trained[name]) for name in ("rows", "baseline", "reference")]
    try:
        return place(facts["look"]["method"], *files), ""
    except ValueError as error:
        return None, str(error)


def _with_place(facts: dict[str, Any], placed: Place | None, why_not: str) -> dict[str, Any]:
    if placed is None:
        return {**facts, "place": None, "why_no_place": why_not}
    findings = [
        {"severity": f.severity, "check": f.check, "subject": f.subject, "what": f.what, "advice": f.advice}
        for f in placed.findings
    ]
    return {
        **facts,
        "place": {
            "judged": asdict(placed.judged),
            "neighbours": [asdict(one) for one in placed.neighbours],
            "not_worse_at_fewer_bits": placed.not_worse_at_fewer_bits,
            "digits": placed.digits,
            "setting": placed.setting,
        },
        "fairness": findings,
    }


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
