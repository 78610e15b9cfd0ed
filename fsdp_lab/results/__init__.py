"""One row per training run in a JSONL file: ``append`` writes it safely, ``load`` reads what is sound.

Read `schema` first: the table of all fields. ``python -m fsdp_lab.results check|show|fields|migrate`` works on files.
"""

from fsdp_lab.results.schema import FIELDS, SCHEMA_VERSION, TIMES
from fsdp_lab.results.store import append, ensure_appendable, load

__all__ = ["FIELDS", "SCHEMA_VERSION", "TIMES", "append", "ensure_appendable", "load"]
