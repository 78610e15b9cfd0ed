"""Conversations with the target's own answers: a draft learns best from them, as it has to guess the target's text.

The target answers every question again, turn by turn, after the original questions and its own earlier answers. A row
of the output is ``{"id", "source", "cut_off", "conversations"}``: ``source`` counts the usable conversations of the
input from 0, ``cut_off`` counts the row's answers that reached ``max_new_tokens``. Rows are in the input's order. A
killed process leaves complete rows; the same command continues after them, and ends with the same file.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from fsdp_lab.data.chats.chat_template import question
from fsdp_lab.data.chats.conversations import Conversation, Skipped, UnusableError, read_conversations
from fsdp_lab.models.saved.tokenizers import check_ids
from fsdp_lab.settings.reading.strict import load_json

_FROM = {"user": "human", "assistant": "gpt", "system": "system"}


@dataclass(frozen=True)
class AnswerSettings:
    """How answers are generated. ``temperature`` 0: always the most likely token; else drawn from all tokens."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    batch_size: int = 8
    seed: int = 42


@dataclass
class _Dialogue:
    """One conversation, and how much of it the target has answered."""

    source: int
    conversation: Conversation
    said: list[dict[str, str]]
    cut_off: int = 0
    ended: str | None = None  # why no more of it is answered


class Regeneration:
    """The target ``hf`` (on its device) and its tokenizer, answering the questions of ``path`` into ``out``."""

    def __init__(self, hf: Any, tokenizer: Any, answering: AnswerSettings, path: Path, out: Path) -> None:
        self._hf, self._tokenizer, self._answering, self._out = hf, tokenizer, answering, out
        self.skipped = Skipped()
        self._conversations = list(read_conversations(path, self.skipped, answered=False))
        if not self._conversations:
            raise ValueError(f"data_path: no usable conversation in {path}\n" + "\n".join(self.skipped.lines()))
        known = hf.generation_config.eos_token_id
        known = known if isinstance(known, list) else [known]
        self._ends = sorted({i for i in [*known, tokenizer.eos_token_id] if i is not None})
        if not self._ends:
            raise ValueError("target_dir: the tokenizer names no token that ends a turn (eos_token)")
        tokenizer.padding_side = "left"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(self._ends[0])
        drawing = {"temperature": answering.temperature, "top_k": 0, "top_p": 1.0} if answering.temperature else {}
        hf.generation_config = GenerationConfig(  # not the folder's own, whose penalties no draft is verified with
            do_sample=answering.temperature > 0,
            max_new_tokens=answering.max_new_tokens,
            eos_token_id=self._ends,
            pad_token_id=tokenizer.pad_token_id,
            **drawing,
        )

    def run(self, say: Callable[[str], None]) -> None:
        """Appends what is missing, a batch at a time. ValueError where ``out`` is of another input or settings."""
        following = self._resume()
        total, size = len(self._conversations), self._answering.batch_size
        if following:
            say(f"{self._out}: goes on after conversation {following:,} of {total:,}")
        start, tokens = time.perf_counter(), 0
        for first in range(following // size * size, total, size):  # batches as of an uninterrupted run
            torch.manual_seed(self._answering.seed + first)
            dialogues = [_Dialogue(first + i, c, []) for i, c in enumerate(self._conversations[first : first + size])]
            tokens += sum(self._answer_next(dialogues) for _ in range(max(map(_questions, dialogues))))
            self._write(dialogue for dialogue in dialogues if dialogue.source >= following)
            rate = tokens / (time.perf_counter() - start)
            say(f"{min(first + size, total):,} of {total:,} conversations, {rate:,.0f} tokens/s")

    def answers(self) -> tuple[int, int]:
        """The number of answers in ``out``, and how many of them were cut off."""
        rows = list(_rows(self._out))
        return sum(t["from"] == "gpt" for r in rows for t in r["conversations"]), sum(r["cut_off"] for r in rows)

    def _answer_next(self, dialogues: Sequence[_Dialogue]) -> int:
        """Generates the next answer of every dialogue; returns the number of tokens generated."""
        asked, texts = [], []
        for dialogue in dialogues:
            if dialogue.ended is None and (text := self._prompt(dialogue)) is not None:
                asked.append(dialogue)
                texts.append(text)
        if not asked:
            return 0
        encoded = self._tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        width = encoded["input_ids"].shape[1]
        check_ids(encoded["input_ids"].flatten().tolist(), self._hf.config.vocab_size, "target_dir")
        inputs = {name: encoded[name].to(self._hf.device) for name in ("input_ids", "attention_mask")}
        made = self._hf.generate(**inputs)[:, width:].tolist()
        count = 0
        for dialogue, tokens in zip(asked, made, strict=True):
            end = next((i for i, token in enumerate(tokens) if token in self._ends), None)
            answer = tokens[:end]
            count += len(answer)
            text = self._tokenizer.decode(answer, skip_special_tokens=True)
            if not text.strip():
                dialogue.ended = "the target has nothing to say"
                dialogue.said.pop()
                continue
            dialogue.said.append({"role": "assistant", "content": text})
            dialogue.cut_off += end is None
        return count

    def _prompt(self, dialogue: _Dialogue) -> str | None:
        """The conversation up to the point where the target speaks next; None when it has ended."""
        rest = dialogue.conversation.messages[len(dialogue.said) :]
        until = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
        if until is None:
            return None
        heard = [*dialogue.said, *rest[: until + 1]]
        try:
            text = question(heard, self._tokenizer)
        except UnusableError as error:
            dialogue.ended = str(error)
            return None
        room = self._hf.config.max_position_embeddings - self._answering.max_new_tokens
        if len(self._tokenizer(text, add_special_tokens=False)["input_ids"]) > room:
            dialogue.ended = f"a question leaves no room for {self._answering.max_new_tokens} tokens"
            return None
        dialogue.said = heard
        return text

    def _write(self, dialogues: Iterable[_Dialogue]) -> None:
        lines = []
        for dialogue in dialogues:
            if dialogue.ended is not None:
                self.skipped.add(dialogue.ended, dialogue.conversation.name)
            if not any(message["role"] == "assistant" for message in dialogue.said):
                continue
            turns = [{"from": _FROM[m["role"]], "value": m["content"]} for m in dialogue.said]
            row = {"id": dialogue.conversation.name, "source": dialogue.source, "cut_off": dialogue.cut_off}
            lines.append(json.dumps(row | {"conversations": turns}, ensure_ascii=False) + "\n")
        with self._out.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _resume(self) -> int:
        """The number of the first conversation without answers; an incomplete last row is cut off."""
        beside = self._out.with_name(self._out.name + ".settings.json")
        target = Path(self._hf.name_or_path).resolve().name
        settings = {"target": target, "conversations": len(self._conversations), **asdict(self._answering)}
        if not self._out.exists():
            self._out.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(settings) + "\n", encoding="utf-8")
            self._out.touch()
            return 0
        was = load_json(beside.read_bytes()) if beside.is_file() else None
        if was != settings:
            raise ValueError(f"out: {self._out} was made otherwise: {was}, now {settings}; give another file")
        whole = self._out.read_bytes()
        os.truncate(self._out, whole.rfind(b"\n") + 1)
        last_row = deque(_rows(self._out), maxlen=1)
        if not last_row:
            return 0
        last = last_row[0]
        source = int(last["source"])
        if source >= len(self._conversations) or self._conversations[source].name != last["id"]:
            raise ValueError(f"out: {self._out} has answers to other conversations; give another file")
        return source + 1


def _questions(dialogue: _Dialogue) -> int:
    return sum(message["role"] == "user" for message in dialogue.conversation.messages)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for line in lines:
            row: dict[str, Any] = load_json(line)
            yield row
