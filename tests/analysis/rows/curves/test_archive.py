"""Packed curves are the curves they were, and an archive that is none is refused with a message."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.curves import archive as curve_archive
from analysis.rows.curves.archive import ArchiveError, add_curves, archive_of, read_archive, read_curve_file
from analysis.rows.curves.files import read_curve
from analysis.rows.curves.of_arms import training_curves
from analysis.rows.curves.pack import main
from analysis.rows.reading import read
from tests.analysis import planted_curves

REFERENCE = Path(__file__).resolve().parents[4] / "results" / "reference"


def curves(folder: Path, **contents: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.jsonl" for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_text(content)
    return paths


def zipped(path: Path, entries: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_a_curve_is_read_from_its_own_file_first_and_from_the_archive_else(tmp_path: Path) -> None:
    first, second = curves(tmp_path / "curves", a="packed", b="also packed")
    assert add_curves(archive_of(first), [first, second]) == 2
    first.write_text("its own file")
    second.unlink()
    assert (read_curve_file(first), read_curve_file(second)) == (b"its own file", b"also packed")
    with pytest.raises(FileNotFoundError):
        read_curve_file(first.with_name("c.jsonl"))


def test_the_same_curves_are_the_same_bytes_in_whichever_order_they_came(tmp_path: Path) -> None:
    one, two, three = curves(tmp_path / "curves", c="3" * 999, a="1", b="2")
    together, apart = tmp_path / "together.zip", tmp_path / "apart.zip"
    add_curves(together, [one, two, three])
    assert [add_curves(apart, files) for files in ([three], [one, three], [two])] == [1, 1, 1]
    assert together.read_bytes() == apart.read_bytes()
    assert list(read_archive(apart)) == ["a.jsonl", "b.jsonl", "c.jsonl"]


def test_another_curve_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    (curve,) = curves(tmp_path / "curves", a="first")
    add_curves(archive_of(curve), [curve])
    curve.write_text("second")
    with pytest.raises(ValueError, match=r"has another curve named a\.jsonl"):
        add_curves(archive_of(curve), [curve])
    assert read_archive(archive_of(curve)) == {"a.jsonl": b"first"}


def test_what_cannot_be_read_again_is_not_written(tmp_path: Path) -> None:
    (curve,) = curves(tmp_path / "curves", a="first")
    add_curves(archive_of(curve), [curve])
    strange = curve.with_name("no curve.txt")
    strange.write_text("text")
    with pytest.raises(ArchiveError, match="no plain name"):
        add_curves(archive_of(curve), [strange])
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["curves.zip"]
    assert read_archive(archive_of(curve)) == {"a.jsonl": b"first"}


def test_packed_rows_have_the_curves_that_they_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    rows = planted_curves.arm(folder, "none") + planted_curves.arm(folder, "int8", worse=0.1)
    file = folder / "results.jsonl"
    file.write_text("".join(json.dumps(dict(row)) + "\n" for row in rows))

    def found() -> object:
        (comparison,) = comparisons(read(file).rows)
        return training_curves(comparison, "train_loss", "tokens")

    before = found()
    assert main([str(file), "--remove"]) == 0
    assert f"{len(rows)} curves added, {len(rows)} in all" in capsys.readouterr().out
    assert list(folder.iterdir()) == [file]
    assert found() == before
    assert main([str(file)]) == 0
    assert capsys.readouterr().out == "no curve file is left to pack\n"


def test_every_committed_row_that_names_a_curve_has_it() -> None:
    rows = [row for file in REFERENCE.rglob("*.jsonl") for kind in (read(file).rows, read(file).drafts) for row in kind]
    named = [row for row in rows if row.curve is not None]
    assert len(named) > 2000
    for row in named:
        lines, complaints = read_curve(row)
        assert lines, row["run_name"]
        assert not complaints


@pytest.mark.parametrize("folder_of_rows", [path.parent.name for path in sorted(REFERENCE.rglob("curves.zip"))])
def test_a_committed_archive_is_what_packing_its_curves_makes(folder_of_rows: str, tmp_path: Path) -> None:
    committed_archive = REFERENCE / folder_of_rows / "curves.zip"
    packed = read_archive(committed_archive)
    folder = tmp_path / "curves"
    add_curves(
        tmp_path / "curves.zip", curves(folder, **{n.removesuffix(".jsonl"): c.decode() for n, c in packed.items()})
    )
    with zipfile.ZipFile(tmp_path / "curves.zip") as one, zipfile.ZipFile(committed_archive) as other:
        facts = [
            [(e.filename, e.date_time, e.CRC, e.external_attr) for e in archive.infolist()] for archive in (one, other)
        ]
    assert facts[0] == facts[1]  # the compressed bytes themselves are zlib's, of which there are several


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../a.jsonl", "no plain name"),
        ("/etc/a.jsonl", "no plain name"),
        ("deep/a.jsonl", "no plain name"),
        ("a\\b.jsonl", "no plain name"),
        ("..jsonl", "no plain name"),
        ("a\x1b[2J.jsonl", "no plain name"),
        ("a.txt", "no plain name"),
        ("folder/", "no plain name"),
        ("a.jsonl" + "l" * 60_000, "no plain name"),
    ],
)
def test_an_archive_with_a_strange_name_is_refused_whole(tmp_path: Path, name: str, why: str) -> None:
    zipped(tmp_path / "curves.zip", {"good.jsonl": b"{}", name: b"{}"})
    with pytest.raises(ArchiveError, match=f"curves.zip is not a sound archive of curves: .*{why}") as refusal:
        read_curve_file(tmp_path / "curves" / "good.jsonl")
    assert len(str(refusal.value)) < 400
    assert str(refusal.value).isprintable()


def test_two_curves_of_one_name_are_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.jsonl": b"one", "b.jsonl": b"two"})
    archive.write_bytes(archive.read_bytes().replace(b"b.jsonl", b"a.jsonl"))
    with pytest.raises(ArchiveError, match=r"two entries are named 'a\.jsonl'"):
        read_archive(archive)


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="in another way than deflate"):
        read_archive(zipped(tmp_path / "a.zip", {"a.jsonl": b"text"}, zipfile.ZIP_LZMA))


def test_bombs_are_refused_before_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zipped(tmp_path / "a.zip", {"a.jsonl": bytes(curve_archive._LARGEST_CURVE + 1)})
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ArchiveError, match="too large"):
        read_archive(bomb)
    many = zipped(tmp_path / "b.zip", {f"{number}.jsonl": bytes(1000) for number in range(20)})
    monkeypatch.setattr(curve_archive, "_LARGEST_WHOLE", 10_000)
    with pytest.raises(ArchiveError, match="too large"):
        read_archive(many)
    monkeypatch.setattr(curve_archive, "_MOST_CURVES", 10)
    with pytest.raises(ArchiveError, match="more than 10 entries"):
        read_archive(many)
    monkeypatch.setattr(curve_archive, "_LARGEST_FILE", 100)
    with pytest.raises(ArchiveError, match="more than 100"):
        read_archive(many)


def test_an_entry_that_says_less_than_it_holds_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.jsonl": bytes(1 << 20)})
    lying = archive.read_bytes().replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    archive.write_bytes(lying)
    with pytest.raises(ArchiveError, match="not a sound archive"):
        read_archive(archive)


def test_damage_anywhere_is_a_message_and_never_another_curve(tmp_path: Path) -> None:
    content = {f"{name}.jsonl": b"".join(b'{"step": %d}\n' % n for n in range(30)) for name in "abc"}
    whole = zipped(tmp_path / "whole.zip", content).read_bytes()
    chance = random.Random(0)
    for number in range(600):
        damaged = bytearray(whole[: chance.randrange(len(whole))] if number % 3 == 0 else whole)
        for _ in range(chance.choice((0, 1, 1, 8))):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        archive = tmp_path / f"{number}.zip"
        archive.write_bytes(damaged)
        try:
            found = read_archive(archive)
        except ArchiveError:
            continue
        assert set(found.values()) <= set(content.values())


def test_a_refused_archive_leaves_rows_without_curves_and_says_so(tmp_path: Path) -> None:
    (row,) = planted_curves.arm(tmp_path, "int8", seeds=(1,))
    assert row.curve is not None
    row.curve.unlink()
    archive_of(row.curve).write_bytes(b"no archive")
    lines, (complaint,) = read_curve(row)
    assert lines == []
    assert complaint.startswith("no curve: ")
    assert "is not a sound archive of curves" in complaint
