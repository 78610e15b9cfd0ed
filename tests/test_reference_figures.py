"""Every committed figure has a command that draws it again, from files that are there."""

from __future__ import annotations

from scripts import reference_figures as figures


def test_every_committed_figure_is_in_the_table_and_every_source_is_committed() -> None:
    committed = {path.relative_to(figures.FOLDER).as_posix() for path in figures.FOLDER.rglob("*.png")}
    assert committed == {*figures.REPORTS, *figures.OTHERS, *figures.NOT_DRAWN}
    assert all((figures.FOLDER / rows).is_file() for rows, _ in figures.REPORTS.values())
