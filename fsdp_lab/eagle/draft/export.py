"""Write a trained draft in another format, and check that its files give the same logits.

python -m fsdp_lab.eagle.draft.export --draft_dir RUN/draft --out OUT --format speculators --target_dir TARGET
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_lab.eagle.draft.folder import check_export, load_draft, read, save_draft, verifier_of
from fsdp_lab.eagle.draft.formats import FORMATS
from fsdp_lab.settings.reading.fields import Config, Settings, setting
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_pipes, user_errors


@dataclass(frozen=True)
class ExportSettings(Settings):
    """Which draft is exported, in which format and for which target."""

    draft_dir: str | None = setting(None, "folder of a trained draft", exists=("folder",))
    out: str | None = setting(None, "folder to write")
    format: str = setting("serving", "whose format", choices=FORMATS)
    target_dir: str | None = setting(
        None, "the target's name or folder, as the export should say it; speculators needs a folder, for its embedding"
    )
    num_drafts: int = setting(3, "tokens that speculators' engines should draft a pass", at_least=1)


@dataclass(frozen=True)
class ExportConfig(Config):
    """All settings of one export of a draft."""

    export: ExportSettings = field(default_factory=ExportSettings)


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
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
