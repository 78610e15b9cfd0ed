"""A question about a comparison is answered once, and again for a comparison that was made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from analysis.rows.comparing.remembered import remembered


@dataclass(frozen=True)
class Subject:
    """Cannot be hashed, as a comparison cannot."""

    numbers: list[int]


def test_answers_last_as_long_as_what_they_are_about() -> None:
    asked = []

    @remembered
    def total(subject: Subject, times: int = 1) -> int:
        asked.append(times)
        return times * sum(subject.numbers)

    one = Subject([1, 2])
    assert [total(one), total(one), total(one, 2), total(one, times=3), total(one, times=3)] == [3, 3, 6, 9, 9]
    assert asked == [1, 2, 3]
    assert total(replace(one, numbers=[5])) == 5
    assert one == Subject([1, 2]), "what is remembered is no part of what it is"
