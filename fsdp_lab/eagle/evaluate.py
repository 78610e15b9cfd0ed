"""How good a draft is: its accuracy by position, the tokens per pass of the target, and the time that saves here.

python -m fsdp_lab.eagle.evaluate --target_dir DIR --draft_dir RUN/draft --data_path held_out.jsonl [--out FILE.json]
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fsdp_lab.eagle.data.prompts import first_prompts
from fsdp_lab.eagle.data.tokens import load_chat_tokenizer, load_examples
from fsdp_lab.eagle.decoding.chain import Sampling
from fsdp_lab.eagle.decoding.speed import Speed, measure_speed, speed_table
from fsdp_lab.eagle.draft.finished import EvaluateConfig, EvaluateSettings
from fsdp_lab.eagle.draft.folder import load_draft
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.training.positions import PositionScores, positions, report
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel
from fsdp_lab.files.atomic import write_json
from fsdp_lab.models.saved.tokenizers import check_ids
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main(argv: list[str]) -> int:
    """Prints both tables, and writes their figures to ``--out``; returns the exit code."""
    with user_errors("fsdp_lab.eagle.evaluate"):
        settings = checked(EvaluateConfig, argv, "fsdp_lab.eagle.evaluate").evaluate
        if settings.target_dir is None or settings.draft_dir is None or settings.data_path is None:
            needed = {
                "target_dir": "the folder of the target",
                "draft_dir": "the folder of its draft",
                "data_path": "a file of conversations to judge it with",
            }
            missing = {name: what for name, what in needed.items() if getattr(settings, name) is None}
            raise ValueError(f"{', '.join(missing)}: missing; give {', '.join(missing.values())}")
        if settings.threads:
            torch.set_num_threads(settings.threads)
        model = _load(Path(settings.target_dir), Path(settings.draft_dir), settings)
        tokenizer = load_chat_tokenizer(Path(settings.target_dir))
        table = _accuracy(model, tokenizer, Path(settings.data_path), settings)
        print(report(table), flush=True)
        speed = _speed(model, tokenizer, Path(settings.data_path), settings)
        print(speed_table(speed))
        if settings.out is not None:
            rows = [row._asdict() for row in table]
            write_json(Path(settings.out), {"settings": asdict(settings), "positions": rows, "speed": asdict(speed)})
    return 0


def _load(target_dir: Path, draft_dir: Path, settings: EvaluateSettings) -> EagleTrainingModel:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[settings.dtype]
    draft = load_draft(draft_dir)
    target = Target.from_folder(target_dir, dtype, draft.shape.layers)
    draft.check_target(target.config)
    return EagleTrainingModel(target, draft.to(dtype), settings.steps_ahead).to(device).eval()


def _accuracy(
    model: EagleTrainingModel, tokenizer: Any, path: Path, settings: EvaluateSettings
) -> list[PositionScores]:
    loaded = load_examples(path, tokenizer, min(settings.max_length, model.target.max_positions))
    check_ids(loaded.largest_ids(), model.target.vocab_size, "target_dir")
    return positions(model, loaded.examples[: settings.conversations], settings.batch_size)


def _speed(model: EagleTrainingModel, tokenizer: Any, path: Path, settings: EvaluateSettings) -> Speed:
    longest = model.target.max_positions - settings.max_new_tokens
    prompts = first_prompts(path, tokenizer, settings.prompts, longest)
    if not prompts:
        raise ValueError(f"data_path: no question of {path} leaves room for {settings.max_new_tokens} tokens")
    sampling = Sampling(settings.temperature, drawn_drafts=not settings.greedy_drafts, seed=settings.seed)
    stop = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    counts = sorted({int(count) for count in settings.num_drafts.split(",")})
    return measure_speed(model.target, model.draft, prompts, settings.max_new_tokens, counts, sampling, stop)


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
