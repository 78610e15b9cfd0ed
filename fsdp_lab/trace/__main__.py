"""Where the time of a profiled run goes, from the traces that its ranks left.

    python -m fsdp_lab.trace DIR [--json FILE] [--timeline FILE.png]

DIR holds one torch.profiler trace a rank (`--profile` writes them to <output_dir>/logs/<run_name>/profiler).
Prints time by phase and class and the traffic of every kind of collective; what counts as what:
`fsdp_lab/trace/reading/activity.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.settings.flag_values import a_folder, new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors
from fsdp_lab.trace.profile import Profile, activity, rank_profile, read_folder
from fsdp_lab.trace.table import table
from fsdp_lab.trace.timeline import draw


def main(argv: Sequence[str]) -> int:
    """Prints the tables and writes the files asked for. The exit code is 2 when there is no complete trace to read."""
    parser = program("fsdp_lab.trace", __doc__, allow_abbrev=False)
    parser.add_argument("folder", metavar="DIR", type=a_folder)
    parser.add_argument("--json", metavar="FILE", type=new_file(), help="everything, by rank, step and phase")
    parser.add_argument(
        "--timeline", metavar="FILE.png", type=new_file(".png", ".svg", ".pdf"), help="a picture of one step"
    )
    options = parser.parse_args(argv)
    with user_errors("fsdp_lab.trace"):
        traces = read_folder(options.folder)
        activities = [activity(trace) for trace in traces]
        profile = Profile([rank_profile(trace, known) for trace, known in zip(traces, activities, strict=True)])
        print(table(profile))
        if options.json is not None:
            _write(options.json, json.dumps(profile.to_json(), indent=1) + "\n")
        if options.timeline is not None:
            draw(traces, activities, options.timeline)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ValueError(f"--json: cannot write {path}: {error.strerror}") from None


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
