"""What a recipe trains: models, or targets of drafts, each with settings of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.sweeps.recipe.complaints import checked_settings, got
from experiments.sweeps.recipe.corpora import corpus_settings
from experiments.sweeps.recipe.start import WORD, Start, own_start, start_of
from experiments.sweeps.recipe.trainers import Trainer


def subjects_of(
    trainer: Trainer, listed: Any, start: Any, complaints: list[str]
) -> tuple[list[dict[str, Any]], tuple[Start, ...]]:
    """The settings of each subject, one of which names it; its others (its own batch_size, say) override `common`.

    ``start``: what the recipe says of a common start, None where it has none. The second: all starts that subjects
    name, each once."""
    if not isinstance(listed, list) or not listed:
        complaints.append(f"{trainer.key}: {got(listed)}, wants a list such as [{trainer.example}]")
        listed = []
    common = None if start is None else start_of(start, complaints)
    elsewhere = {key: where for key, where in trainer.elsewhere.items() if key not in trainer.named_by}
    subjects, starts = [], dict[Path, Start]()
    for number, said in enumerate(listed, start=1):
        where = f"{trainer.key}[{number}]"
        settings: Any = {next(iter(trainer.named_by)): said} if isinstance(said, str) else said
        corpus: dict[str, Any] = {}
        begin: Start | None = None
        if trainer.has_corpora and isinstance(settings, Mapping):
            settings = dict(settings)
            if "corpus" in settings:
                corpus = corpus_settings(settings.pop("corpus"), complaints, f"{where}.corpus")
            begin = _start_of_subject(settings, start, common, complaints, where)
        subject = checked_settings(where, settings, trainer.config.specs(), elsewhere, complaints) | corpus
        if isinstance(settings, Mapping) and len(settings.keys() & trainer.named_by.keys()) != 1:
            ways = " or ".join(f"{name} ({what})" for name, what in trainer.named_by.items())
            complaints.append(f"{where}: wants {'either ' * (len(trainer.named_by) > 1)}{ways}")
        if begin is not None:
            subject["model_dir"] = str(begin.folder)
            starts[begin.folder] = begin
        subjects.append(subject)
    return subjects, tuple(starts.values())


def _start_of_subject(
    settings: dict[str, Any], start: Any, common: Start | None, complaints: list[str], where: str
) -> Start | None:
    """The start that a subject names: ``common``, or its own, whose key is taken out of ``settings`` in favour of
    model_dir; None where it names none, or where ``complaints`` say what is wrong."""
    if WORD in settings:
        own = own_start(settings.pop(WORD), start)
        settings.setdefault("model_dir", WORD)
        return start_of(own, complaints, f"{where}.{WORD}")
    if settings.get("model_dir") != WORD:
        return None
    if start is None:
        complaints.append(f"{where}.model_dir: {WORD} is what the key {WORD} describes, which the recipe lacks")
    return common
