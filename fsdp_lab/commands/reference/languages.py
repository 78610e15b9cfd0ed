"""What the reference says in Chinese: a table of sentences by their English, chinese.json, beside this module.

The table has sections only for its reader; a sentence is looked up in all of them. One that is null stays as it is (a
paper's title). An English sentence that has no entry is shown in English, and counted in `Language.missing`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path(__file__).with_name("chinese.json")


@dataclass
class Language:
    """Says sentences by ``table``, or as they are; remembers which it was asked for.

    ``missing``: those without an entry. ``unused``: entries that nothing asked for yet.
    """

    table: dict[str, str | None] | None = None
    _asked: set[str] = field(default_factory=set)

    def __call__(self, text: str) -> str:
        """The sentence in this language. White space, which is how the code breaks its lines, does not count."""
        key = " ".join(text.split())
        if self.table is None or not key:
            return text
        self._asked.add(key)
        return self.table.get(key) or text

    @property
    def missing(self) -> list[str]:
        """English sentences that the table lacks, in the order of the alphabet."""
        return sorted(self._asked - set(self.table or ()))

    @property
    def unused(self) -> list[str]:
        """English sentences of the table that nobody said, in the order of the alphabet."""
        return sorted(set(self.table or ()) - self._asked)


def english() -> Language:
    """The language of the sources: every sentence as it is."""
    return Language()


def chinese(table: Path = TABLE) -> Language:
    """Chinese by ``table``. ValueError: a sentence stands in two sections, which could contradict each other."""
    sections: dict[str, dict[str, str | None]] = json.loads(table.read_text(encoding="utf-8"))
    sentences: dict[str, str | None] = {}
    for name, section in sections.items():
        if twice := sorted(set(sentences) & set(section)):
            raise ValueError(f"{table.name}: {twice[0]!r} stands in {name!r} and before; delete one")
        sentences |= section
    return Language(sentences)
