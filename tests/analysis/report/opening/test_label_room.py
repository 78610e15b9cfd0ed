"""Names keep clear of lines where they can, and of marks and other names always."""

from __future__ import annotations

from analysis.report.opening.label_room import Place, Room

AT = (100.0, 100.0)
SHEET = (0.0, 0.0, 200.0, 200.0)


def _covers(corner: Place, line: tuple[Place, Place], width: float, high: float) -> bool:
    left, top = corner[0], corner[1] - 0.85 * high
    (x, y), (to_x, to_y) = line
    return (
        left < max(x, to_x) and min(x, to_x) < left + width and top < max(y, to_y) + 1 and min(y, to_y) - 1 < top + high
    )


def test_a_name_keeps_clear_of_a_line_through_its_mark() -> None:
    for line in (((0.0, 100.0), (200.0, 100.0)), ((100.0, 0.0), (100.0, 200.0))):
        corner = Room(SHEET, [AT], [line]).take(AT, 40, 13)
        assert corner is not None
        assert not _covers(corner, line, 40, 13)
    level = ((0.0, 100.0), (200.0, 100.0))
    without = Room(SHEET, [AT]).take(AT, 40, 13)
    assert without is not None
    assert _covers(without, level, 40, 13), "without the line the name would have been on it"


def test_where_every_place_has_a_line_the_name_is_written_over_one() -> None:
    lines = [((0.0, float(y)), (200.0, float(y))) for y in range(0, 200, 8)]
    assert Room(SHEET, [AT], lines).take(AT, 40, 13) == Room(SHEET, [AT]).take(AT, 40, 13)


def test_marks_are_covered_by_no_name() -> None:
    marks = [(float(x), float(y)) for x in range(0, 200, 15) for y in range(0, 200, 15)]
    assert Room(SHEET, [*marks, AT]).take(AT, 40, 13) is None
