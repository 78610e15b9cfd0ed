"""The table of all fields of a results row: name, type, unit and meaning. `validation` checks rows against it.

A row is one JSON object. ``required`` is "always", "ok" (when status is ok: a failed run has measured less) or "no".
A field that is not given is written as null, so that all rows have the same keys. A NaN or an infinity is written as
null too, and its field (``name`` or ``name.key``) is listed in ``nonfinite_fields``.

Byte fields count what one rank sends. Every ratio names its denominator and is computed from counts in the row
(`results.derived`; the validation computes it again). Older rows are migrated when they are read (`results.migrate`).
"""

from itertools import chain

from fsdp_lab.results.schema.field import Field
from fsdp_lab.results.schema.quality import PERPLEXITY, QUALITY
from fsdp_lab.results.schema.speed import SPEED, TIMES
from fsdp_lab.results.schema.surroundings import CHECKPOINTS, COST, LINK, MACHINE
from fsdp_lab.results.schema.traffic import BYTES, FIDELITY
from fsdp_lab.results.schema.what_ran import WHAT_RAN

__all__ = ["BY_NAME", "FIELDS", "PERPLEXITY", "SCHEMA_VERSION", "SECTIONS", "TIMES", "Field"]

SCHEMA_VERSION = 4
SECTIONS: dict[str, tuple[Field, ...]] = {
    "What ran": WHAT_RAN,
    "Speed": SPEED,
    "Bytes": BYTES,
    "Fidelity of gradients": FIDELITY,
    "Quality": QUALITY,
    "Checkpoints": CHECKPOINTS,
    "Cost": COST,
    "Link": LINK,
    "Where it ran": MACHINE,
}
"""The fields by what they are about, in the order in which rows have them."""
FIELDS = tuple(chain.from_iterable(SECTIONS.values()))
BY_NAME = {field.name: field for field in FIELDS}
