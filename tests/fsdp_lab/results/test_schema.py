"""The table of all fields: every field once, and said in full."""

from __future__ import annotations

import re
from itertools import chain

from fsdp_lab.results.schema import BY_NAME, FIELDS, PERPLEXITY, SCHEMA_VERSION, SECTIONS, TIMES


def test_every_field_is_in_one_section_once() -> None:
    assert tuple(chain.from_iterable(SECTIONS.values())) == FIELDS
    assert len(BY_NAME) == len(FIELDS)
    assert all(SECTIONS.values())


def test_lists_of_fields_name_some_that_there_are() -> None:
    for listed in (TIMES, PERPLEXITY):
        assert len(set(listed)) == len(listed)
        assert set(listed) <= BY_NAME.keys()


def test_every_field_is_said_in_full() -> None:
    for field in FIELDS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", field.name)
        assert field.meaning, field.name
        assert 1 <= field.since <= SCHEMA_VERSION, field.name
        assert not field.nullable or field.required == "ok", f"{field.name}: others are never null, or may be anyway"


def test_words_say_kind_and_requirement() -> None:
    status, mean = BY_NAME["status"], BY_NAME["steps_timed"]
    assert (status.type_words, status.required_words) == ("ok or failed or preempted", "always")
    assert mean.required_words == "ok, since version 2"
