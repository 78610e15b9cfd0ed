"""Write a trained draft in another format, and check that its files give the same logits.

python -m fsdp_lab.eagle.draft.export --draft_dir RUN/draft --out OUT --format speculators --target_dir TARGET
"""

from __future__ import annotations

import sys
from pathlib import Path

from fsdp_lab.eagle.draft.finished import ExportConfig
from fsdp_lab.eagle.draft.folder import check_export, load_draft, read, save_draft, verifier_of
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main(argv: list[str]) -> int:
    """Writes the draft in the format asked for; returns the exit code."""
    with user_errors("fsdp_lab.eagle.draft.export"):
        settings = checked(ExportConfig, argv, "fsdp_lab.eagle.draft.export").export
        if settings.draft_dir is None or settings.out is None:
            raise ValueError("draft_dir and out: missing; give the folder to read and the folder to write")
        source, out = Path(settings.draft_dir), Path(settings.out)
        if source.resolve() == out.resolve():
            raise ValueError("out: is draft_dir itself; give another folder")
        draft = load_draft(source)
        name = settings.target_dir or read(source)[0].get("verifier_name", "")
        verifier = verifier_of(name, settings.num_drafts, embedding=settings.format == "speculators")
        save_draft(draft, out, verifier, settings.format)
        print(f"{out}: {settings.format}, logits differ by {check_export(draft, out):.1e} of the largest")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
