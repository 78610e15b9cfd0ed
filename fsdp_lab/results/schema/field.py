"""What the table says of a field of a results row."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Field:
    """One field. ``kind`` is a type's name, "object of" a type, "list of" a type, or the allowed texts joined by ``|``.

    ``since`` is the schema version that introduced the field: rows of earlier versions may have null.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    required: Literal["always", "ok", "no"] = "ok"
    nullable: bool = False  # may be null although the run is ok
    since: int = 1

    @property
    def type_words(self) -> str:
        """Its type as a table says it."""
        return self.kind.replace("|", " or ")

    @property
    def required_words(self) -> str:
        """When it is there as a table says it: ``ok, or null, since version 2``."""
        return self.required + ", or null" * self.nullable + f", since version {self.since}" * (self.since > 1)
