"""How good a draft is: accuracy by position, tokens a pass of the target, and what that saves on this machine.

python -m fsdp_lab.eagle.evaluate --target_dir DIR --draft_dir RUN/draft --data_path held_out.jsonl [--out FILE.json]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsdp_lab.eagle.data.conversations import Skipped, UnusableError, read_conversations
from fsdp_lab.eagle.data.tokens import Example, collate, load_chat_tokenizer, load_examples, question
from fsdp_lab.eagle.decoding.chain import Sampling
from fsdp_lab.eagle.decoding.speed import measure_speed, speed_table
from fsdp_lab.eagle.draft.export import load_draft
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel
from fsdp_lab.files.atomic import write_json
from fsdp_lab.models.saved.tokenizers import check_ids
from fsdp_lab.settings.reading.fields import Config, Settings, setting
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_pipes, user_errors


class Position(NamedTuple):
    """One step of the training-time test over all conversations. Means are over tokens, ``_sd`` over conversations.

    ``accuracy``: is the draft's first choice the target's (over the target's whole vocabulary)? ``conditional``: the
    same where all steps before were right. ``overlap``: the share of drawn drafts that sampling would accept.
    """

    tokens: int
    accuracy: float
    accuracy_sd: float
    conditional: float
    overlap: float
    loss: float
    loss_sd: float


@torch.no_grad()
def positions(model: EagleTrainingModel, examples: Sequence[Example], batch_size: int = 8) -> list[Position]:
    """The table, one row for each step. ``model`` on the device where it is to be computed."""
    device = model.target.head.device
    chunks = [examples[i : i + batch_size] for i in range(0, len(examples), batch_size)]
    sums = []
    for chunk in chunks:
        batch = collate(list(chunk)).to(device)
        outcome = model(batch.tokens, batch.loss_mask)
        rows, tally = outcome.supervised, outcome.tally
        right = tally.correct.cumprod(0).bool()  # this step and all before
        judged = torch.cat([rows[:1], rows[1:] & right[:-1]])
        values = [rows, tally.correct, judged, right & rows, tally.overlap, tally.loss]
        sums.append(torch.stack([x.sum(-1).double().cpu() for x in values]))  # [6, K, B]
    whole = torch.cat(sums, -1)
    return [_position(whole[:, k]) for k in range(model.steps)]


def _position(sums: Tensor) -> Position:
    """``[6, N]``: the sums of each conversation."""
    rows, correct, judged, right, overlap, loss = sums
    some = rows > 0
    count, total = rows.sum().clamp(min=1), judged.sum().clamp(min=1)
    return Position(
        int(rows.sum()),
        float(correct.sum() / count),
        _sd(correct[some] / rows[some]),
        float(right.sum() / total),
        float(overlap.sum() / count),
        float(loss.sum() / count),
        _sd(loss[some] / rows[some]),
    )


def _sd(values: Tensor) -> float:
    return float(values.std()) if len(values) > 1 else 0.0


def expected_tau(table: Sequence[Position]) -> float:
    """Tokens a pass of the target when as many drafts as the table has rows are made: 1 + sum of products."""
    tau, chance = 1.0, 1.0
    for row in table:
        chance *= row.conditional
        tau += chance
    return tau


def first_prompts(path: Path, tokenizer: Any, count: int, max_length: int) -> list[list[int]]:
    """The first questions of a file's conversations as the chat template puts them to the model."""
    found = []
    for conversation in read_conversations(path, Skipped()):
        asked = next(i for i, message in enumerate(conversation.messages) if message["role"] == "user")
        try:
            text = question(conversation.messages[: asked + 1], tokenizer)
        except UnusableError:
            continue  # counted where the file is read for the table
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(tokens) <= max_length:
            found.append(tokens)
        if len(found) == count:
            break
    return found


def report(table: Sequence[Position]) -> str:
    """The table as text."""
    lines = ["position   tokens   accuracy (sd)    conditional   overlap   loss (sd)"]
    lines += [
        f"{k:>8} {row.tokens:>8,}   {row.accuracy:.3f} ({row.accuracy_sd:.3f})    {row.conditional:>11.3f}"
        f"   {row.overlap:>7.3f}   {row.loss:.3f} ({row.loss_sd:.3f})"
        for k, row in enumerate(table)
    ]
    return "\n".join([*lines, f"expected tokens a pass of the target, {len(table)} drafts: {expected_tau(table):.2f}"])


@dataclass(frozen=True)
class EvaluateSettings(Settings):
    """Which draft, on what."""

    target_dir: str | None = setting(None, "folder of the target model", exists=("folder",))
    draft_dir: str | None = setting(None, "folder of the draft", exists=("folder",))
    data_path: str | None = setting(None, "JSON lines of held-out conversations", exists=("file",))
    dtype: str = setting("fp32", "dtype of the arithmetic", choices=("fp32", "bf16"))
    max_length: int = setting(2048, "tokens of a conversation that are kept", at_least=4)
    steps_ahead: int = setting(7, "positions in the table", at_least=1)
    batch_size: int = setting(8, "conversations at once, for the table", at_least=1)
    conversations: int | None = setting(None, "conversations in the table; none: all", at_least=1)
    prompts: int = setting(20, "first questions that are answered for the speed", at_least=1)
    max_new_tokens: int = setting(128, "tokens of an answer at most", at_least=2)
    num_drafts: str = setting(
        "1,2,4",
        "tokens drafted before each pass of the target; several are compared",
        pattern=(r"[1-9][0-9]?(,[1-9][0-9]?)*", "numbers of 1 to 99 with commas between"),
    )
    temperature: float = setting(0.0, "0: always the most likely token", at_least=0)
    greedy_drafts: bool = setting(False, "propose the draft's first choices also when sampling")
    seed: int = setting(42, "seed of the drawing", at_least=0)
    threads: int | None = setting(None, "CPU threads; none: torch's choice", at_least=1)
    out: str | None = setting(None, "JSON file for the same figures")


@dataclass(frozen=True)
class EvaluateConfig(Config):
    """All settings of one evaluation."""

    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)


def main(argv: list[str]) -> int:
    """Print the table and the speed; returns the exit code."""
    with user_errors("fsdp_lab.eagle.evaluate"):
        settings = checked(EvaluateConfig, argv, "fsdp_lab.eagle.evaluate").evaluate
        if settings.target_dir is None or settings.draft_dir is None or settings.data_path is None:
            raise ValueError("target_dir, draft_dir and data_path: all three are needed")
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[settings.dtype]
        draft = load_draft(Path(settings.draft_dir))
        target = Target.from_folder(Path(settings.target_dir), dtype, draft.shape.layers)
        draft.check_target(target.config)
        model = EagleTrainingModel(target, draft.to(dtype), settings.steps_ahead).to(device).eval()
        tokenizer = load_chat_tokenizer(Path(settings.target_dir))
        path = Path(settings.data_path)
        found = load_examples(path, tokenizer, min(settings.max_length, target.max_positions))
        check_ids(found.largest_ids(), target.vocab_size, "target_dir")
        table = positions(model, found.examples[: settings.conversations], settings.batch_size)
        print(report(table), flush=True)
        prompts = first_prompts(path, tokenizer, settings.prompts, target.max_positions - settings.max_new_tokens)
        if not prompts:
            raise ValueError(f"data_path: no question of {path} leaves room for {settings.max_new_tokens} tokens")
        sampling = Sampling(settings.temperature, drawn_drafts=not settings.greedy_drafts, seed=settings.seed)
        stop = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        counts = sorted({int(count) for count in settings.num_drafts.split(",")})
        got = measure_speed(target, model.draft, prompts, settings.max_new_tokens, counts, sampling, stop)
        print(speed_table(got))
        if settings.out is not None:
            rows = [row._asdict() for row in table]
            write_json(Path(settings.out), {"settings": asdict(settings), "positions": rows, "speed": asdict(got)})
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
