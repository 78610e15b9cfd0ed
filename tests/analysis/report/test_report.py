"""The report as its reader gets it: complete, honest about what is missing, the same for the same rows."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis.report import document
from analysis.report.__main__ import main
from analysis.report.pages import html, markdown
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.statistics import names
from analysis.tables.formats import Table
from tests.analysis import planted, planted_curves
from tests.analysis.planted_rows import SEEDS, died, write
from tests.analysis.planted_times import PARTS, timed

VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Tags that open and close, addresses, anchors, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.headings: list[str] = []
        self.alts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.open += [] if tag in VOID else [tag]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.addresses += [given[name] or "" for name in ("src", "href") if name in given]
        self.alts += [given["alt"] or ""] if tag == "img" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two links, a lost run, half a line, a row of an older schema and one arm without any time."""
    folder = tmp_path_factory.mktemp("report")
    rows = [timed(method, seed, link_rate_asked=rate) for method in PARTS for seed in SEEDS for rate in (2e8, 1e9)]
    rows = [died("int8", 3, link_rate_asked=1e9) if _is(row, "int8", 3, 1e9) else row for row in rows]
    file = write(folder / "rows.jsonl", [*rows, timed("int4", link_rate_asked=2e8)])
    with file.open("a") as stream:
        stream.write('{"half a li\n' + json.dumps({"schema_version": 1}) + "\n")
    (folder / "calibration.json").write_text(json.dumps(planted.document()))
    return folder


def _is(row: Row, method: str, seed: int, rate: float) -> bool:
    return (row["compress_method"], row["seed"], row["link_rate_asked"]) == (method, seed, rate)


@pytest.fixture(scope="module")
def report(made: Path) -> Path:
    assert main([str(made / "rows.jsonl"), "--out", str(made / "report"), "--formats", "svg"]) == 0
    return made / "report"


def test_the_page_is_whole_and_needs_nothing_else(report: Path) -> None:
    page = Page((report / "index.html").read_text())
    assert not {"link", "iframe"} & set(page.tags)
    assert page.tags.count("script") == 1
    assert "default-src 'none'" in (report / "index.html").read_text()
    inside = [a.removeprefix("#") for a in page.addresses if a.startswith("#")]
    assert set(inside) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    data = [a for a in page.addresses if a.startswith("data:image/svg+xml;base64,")]
    files = [a for a in page.addresses if a.endswith(".svg")]
    assert len(inside) + len(data) + len(files) == len(page.addresses)  # nothing from elsewhere
    assert sorted(files) == sorted(p.name for p in report.glob("*.svg"))
    assert len(data) == len(files) - 1 == len(page.alts)  # the first figure is part of the page
    assert all(page.alts)


def test_the_answer_comes_first_then_what_speaks_against_it(report: Path) -> None:
    page = Page((report / "index.html").read_text())
    assert page.headings[:3] == ["The answer", "What speaks against these comparisons", "What was compared"]
    assert "1 Gbit/s" in page.headings[4]  # the smaller comparison after the larger
    assert all("against none" in heading for heading in page.headings[3:5])
    text = (report / "report.md").read_text()
    assert text.index("What speaks against") < text.index("What was compared") < text.index("200 Mbit/s, against none")
    assert "int8 + int8 (1 of 3)" in text  # failed runs
    assert text.index("**error**") < text.index("What was compared")
    assert "lost: seed 3" in text
    assert "rows.jsonl, line 20: not whole JSON" in text
    assert "fsdp-lab report" in text


def test_every_figure_is_there_or_named_with_a_reason(report: Path) -> None:
    text = (report / "report.md").read_text()
    drawn = set(re.findall(r"!\[.*?\]\((.+?)\.svg\)", text))
    assert drawn == {path.stem for path in report.glob("*.svg")}
    for name in ("quality_against_compression", "step_time", "communication_share", "bytes", "break_even"):
        assert sum(path.endswith(name) for path in drawn) >= 2, name
    assert {"along-links-1-links", "all-system", "predicted-blocks-2-ranks-predicted_break_even"} <= drawn
    missing = text[text.index("What is missing in the figures") :]
    assert re.search(r"-loss_curves: no curve with train_loss", missing)


def test_time_to_quality_is_drawn_once_for_all_links(tmp_path: Path) -> None:
    links = [(method, rate) for method in ("none", "int8") for rate in (2e8, 1e9)]
    rows = [row for method, rate in links for row in planted_curves.arm(tmp_path, method, link_rate_asked=rate)]
    file = write(tmp_path / "results.jsonl", rows)
    assert main([str(file), "--out", str(tmp_path / "report"), "--formats", "svg"]) == 0
    (drawn,) = (tmp_path / "report").glob("*-time_to_quality.svg")
    text = drawn.read_text()
    assert re.findall(r">(200 Mbit/s|1 Gbit/s)<", text) == ["200 Mbit/s", "1 Gbit/s"]
    assert "1 % above the baseline" in text
    assert not re.search(r"steps, .*bit/s", text)  # the foot names no link


def test_one_rank_and_virtual_ranks_lose_figures_and_no_report(tmp_path: Path) -> None:
    """One rank sends nothing; virtual ranks have no times, so some figures know only when drawn that they are empty."""
    untimed = {"virtual_ranks": 8, "step_time_ms_mean": None, "step_time_ms_p50": None, "tokens_per_s": None}
    rows = planted_curves.arm(tmp_path, "none") + planted_curves.arm(tmp_path, "int8", worse=0.001)
    for method in ("none", "int8"):
        rows += planted_curves.arm(tmp_path, method, world_size=1, elements_by_op=None)
        rows += planted_curves.arm(tmp_path, method, world_size=8, **untimed)
    file = write(tmp_path / "results.jsonl", rows)
    assert main([str(file), "--out", str(tmp_path / "report"), "--formats", "svg"]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    missing = text[text.index("What is missing in the figures") :]
    assert re.search(r"-1-rank-.*has both", missing)
    assert re.search(r"-8-virtual-ranks-.*-time_to_quality: time to quality: no time of a step is known", missing)
    assert (tmp_path / "report" / "along-world-sizes-1-world_sizes.svg").exists()


def test_numbers_are_those_of_the_statistics(report: Path) -> None:
    with (report / "data.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert {line["figure"] for line in lines} >= {"step_time", "bytes", "links", "quality_against_compression"}
    (step,) = (
        x
        for x in lines
        if x["figure"] == "step_time"
        and x["quantity"] == "step, ms"
        and x["arm"] == "bf16 + bf16"
        and "1-gbit" in x["section"]
    )
    assert float(step["value"]) == pytest.approx(92)
    assert float(step["low"]) < 92 < float(step["high"])
    assert step["n"] == "3"
    lost = [x for x in lines if x["figure"] == "quality_against_compression" and x["value"] == "inf"]
    assert {x["arm"] for x in lost} == {"int8 + int8", "int4 + int4"}  # int4: two of the baseline's seeds are missing


def test_tables(report: Path) -> None:
    for name, mark in (("table.md", "| none |"), ("table.tex", r"\bottomrule")):
        text = (report / name).read_text()
        assert text.count(mark) >= 2, name


def test_the_same_rows_give_the_same_bytes(made: Path, report: Path) -> None:
    again = made / "again"
    assert main([str(made / "rows.jsonl"), "--out", str(again), "--formats", "svg"]) == 0
    files = sorted(path.name for path in report.iterdir())
    assert sorted(path.name for path in again.iterdir()) == files
    for name in files:
        assert (again / name).read_bytes() == (report / name).read_bytes(), name


def test_figures_of_an_earlier_report_do_not_stay(made: Path, report: Path) -> None:
    """None may pass for one of this report; no file of somebody else is touched, whatever the list says."""
    copy = made / "copy"
    flags = [
        str(made / "rows.jsonl"),
        "--out",
        str(copy),
        "--formats",
        "svg",
        "--select",
        "compress_method=none",
        "link_rate_asked=1e9",
    ]
    copy.mkdir()
    (copy / "notes.txt").write_text("mine")
    (made / "beside.svg").write_text("mine, too")
    (copy / "along-links-1-links.svg").write_bytes((report / "along-links-1-links.svg").read_bytes())
    (copy / "figures.txt").write_text("along-links-1-links.svg\nnotes.txt\n../beside.svg\n")
    assert main(flags) == 0
    assert not (copy / "along-links-1-links.svg").exists()
    assert (copy / "notes.txt").exists()
    assert (made / "beside.svg").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--select", "seed=9"], ["select seed=9", "1, 2, 3"]),
        (["--select", "nonsense=1"], ["nonsense"]),
        (["--formats", "svg,gif"], ["--formats", "gif"]),
        (["--calibration", "no/such.json"], ["no/such.json"]),
        (["--calibrated_model", "huge"], ["--calibrated_model", "huge", "blocks"]),
        (["--out", "rows.jsonl"], ["rows.jsonl"]),
    ],
)
def test_mistakes_are_one_message(
    flags: list[str], words: list[str], made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    with pytest.raises(SystemExit) as stop:
        main(["rows.jsonl", "--out", "never", *flags])
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert all(word in error for word in words), error


def test_no_sound_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{half\n[1]\n")
    with pytest.raises(SystemExit) as stop:
        main([str(file), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "2 lines left out" in capsys.readouterr().err


def test_texts_cannot_break_the_page(tmp_path: Path) -> None:
    evil = '<b>&"quoted"|'
    section = document.Section("a", evil, [document.Text(evil), Table(evil, [evil], [[evil]], evil)])
    whole = document.Document(evil, [section])
    Page(html.render(whole, tmp_path, ["svg"]))
    assert "<b>&" not in html.render(whole, tmp_path, ["svg"])
    assert r"\|" in markdown.render(whole, "svg")


def arm(**settings: object) -> Arm:
    return Arm("uniform", json.dumps(settings, sort_keys=True), "delta")


def test_long_names_are_shortened_alike_everywhere() -> None:
    row = dict(timed("int8"))

    def with_settings(seed: int = 1, world: int = 2, **settings: object) -> Row:
        config = row["config"] | {"comm_config_json": settings, "param_compress": "none", "seed": seed}
        sent = round(12.5 / 16 * row["num_parameters"] * row["steps"])
        sent *= 2 if settings == oddest else 1
        return Row(row | {"config": config, "seed": seed, "world_size": world, "bytes_compressed_total": sent})

    common: dict[str, Any] = {"hadamard": True, "error_feedback": True, "block_size": 512}
    first, second = common | {"bits": 4}, common | {"bits": 3}
    odd = common | {"values": {"method": "uniform", "levels": 3, "clip_sigmas": 1.22}}
    odder = odd | {"values": odd["values"] | {"levels": 5}}
    oddest = odd | {"values": odd["values"] | {"levels": 9}}
    some = comparisons([with_settings(**s, world=w) for s in (first, second, odd, odder, oddest) for w in (2, 4)])
    found = names.named(some)
    for comparison in found:
        labels = [runs.arm.label for runs in comparison.arms]
        assert labels == [
            *("int8 bits=4", "int8 bits=3"),
            *("int8, 12.5 bits", "int8, 12.5 bits no. 2", "int8, 25.0 bits"),
        ]
        assert names.full(comparison.arms[0].arm) == "int8 bits=4 block_size=512 feedback hadamard"
    assert [runs.arm for c in found for runs in c.arms] == [runs.arm for c in some for runs in c.arms]  # still equal
    alone = arm(aaaaaaaaaaaaaaa=1, bbbbbbbbbbbbbbbbbbbbb=2)
    assert replace(alone, name="x") == alone
