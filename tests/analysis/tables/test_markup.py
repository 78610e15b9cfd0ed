"""Whatever a name in a row holds, a report shows its letters: no markup, no link, no escape of a terminal."""

from __future__ import annotations

import re
import unicodedata
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from analysis import claim, drafts
from analysis.checks import __main__ as fairness
from analysis.report import document
from analysis.report.__main__ import main
from analysis.report.pages import html, markdown
from analysis.rows.reading import Row
from analysis.tables import comparison as tables, markup
from analysis.tables.formats import Table
from fsdp_lab.results.__main__ import main as results
from fsdp_lab.settings.user_errors import printable, user_errors
from tests.analysis import planted_curves, planted_drafts
from tests.analysis.planted_rows import died, fair, write

PARTS = (
    "<script>",
    "</td>",
    "<!--",
    "[a](javascript:alert(1))",
    "![a](x)",
    "](",
    "[",
    "]:",
    "](<",
    "`",
    "``",
    "*",
    "_",
)
PARTS += (
    "**",
    "~~",
    "|",
    "\\",
    "&lt;",
    "&#106;",
    "$",
    "$x$",
    "# ",
    "> ",
    "- ",
    "1. ",
    "+ ",
    "===",
    "---",
    "\n",
    "\r\n\n",
    "\t",
)
PARTS += (
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\x00",
    "\u202e",
    "\u2028",
    "\ud800",
    "'",
    '"',
    "a",
    "word",
    " ",
    "é",
    "中",
    "}",
    "{0}",
)
HOSTILE = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8).map("".join)
GITHUB = MarkdownIt("commonmark").enable("table").enable("strikethrough")
PLAIN = {"text", "softbreak", "text_special"}


def inner(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens if token.type == "inline" for child in token.children or ()]


def shown(tokens: list[Token]) -> str:
    return "".join(token.content for token in tokens)


def squeezed(text: str) -> str:
    """As a reader sees spaces, and Markdown and HTML treat them."""
    return re.sub(r"[ \u00a0]+", " ", text).strip()


@given(name=HOSTILE)
@example("[x]: javascript:alert(1)")
@example("[a\\](javascript:alert(1))")
@example("1) a\n# b")
def test_markdown_shows_every_letter_and_no_markup(name: str) -> None:
    tokens = GITHUB.parse(f"A {markup.inline(name)} Z")
    assert [t.type for t in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {t.type for t in inner(tokens)} <= PLAIN
    assert squeezed(shown(inner(tokens))) == squeezed(f"A {printable(name)} Z")
    alone = GITHUB.parse(markup.block(name))
    assert {t.type for t in alone} <= {
        "paragraph_open",
        "inline",
        "paragraph_close",
        *["code_block"] * name.startswith("    "),
    }
    assert {t.type for t in inner(alone)} <= PLAIN


@given(names=st.lists(HOSTILE, min_size=3, max_size=3))
def test_tables_keep_their_cells(names: list[str]) -> None:
    first, second, title = names
    table = Table(f"T {title}", ["arm", "x"], [[f"A {first}", f"B {second}"]], f"N {title}")
    tokens = GITHUB.parse(table.markdown())
    assert [t.type for t in tokens if t.type in ("tr_open", "td_open", "th_open")] == (
        ["tr_open", "th_open", "th_open", "tr_open", "td_open", "td_open"]
    )
    assert {t.type for t in inner(tokens)} <= {*PLAIN, "strong_open", "strong_close"}
    cells = [squeezed(shown(t.children or [])) for t in tokens if t.type == "inline"][3:5]
    assert cells == [squeezed(f"A {printable(first)}"), squeezed(f"B {printable(second)}")]
    assert len(table.text().splitlines()) == 6
    assert not controls(table.text())
    assert not controls(table.latex())


class Texts(HTMLParser):
    """Names of tags, and the text of table cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(name=HOSTILE)
def test_a_page_has_the_tags_that_it_would_have_without_the_name(name: str) -> None:
    def page(text: str) -> str:
        blocks = [
            document.Text(text),
            document.Facts([(text, text)]),
            document.Notes([("error", text)]),
            document.Command(text),
            Table(text, [text], [[text]], text),
        ]
        return html.render(document.Document(text, [document.Section("a", text, blocks)]), Path(), ["svg"])

    assert Texts(page("x" + name)).tags == Texts(page("x")).tags
    assert printable(name) in Texts(page(name)).text
    assert not controls(page(name))


def controls(text: str) -> set[str]:
    return {
        letter for letter in text if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }


EVIL = "$\\frac{ <script>alert(1)</script> [a](javascript:alert(1)) \x1b[2J\x1b]0;pwned\x07 \u202e | `x` \n# b"


def renamed(row: Row) -> Row:
    """Every text of the row that anybody may choose, with something evil in it."""
    method = row["compress_method"]
    evil = {"comm_config_json": {EVIL: EVIL}} if method == "int8" else {}
    config = {**row["config"], **evil, "model": EVIL, "dataset": EVIL}
    texts = dict.fromkeys(("model", "dataset", "git_commit"), EVIL) | {"run_name": f"{EVIL}-{row['run_name']}"}
    return Row(
        {**row, **texts, "config": config, "hardware": {"cpu": EVIL, "host": EVIL, "gpus": []}}, row.file, row.line
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil")
    rows = [renamed(one) for method in ("none", "bf16", "int8") for one in planted_curves.arm(folder, method)]
    rows.append(renamed(died("int4", 1, error=EVIL)))
    assert main([str(write(folder / "rows.jsonl", rows)), "--out", str(folder / "report"), "--formats", "svg"]) == 0
    return folder


def test_a_whole_report_of_evil_names(report: Path) -> None:
    text = (report / "report" / "report.md").read_text()
    tokens = GITHUB.parse(text)
    assert not {t.type for t in tokens} & {"html_block", "code_fence"}
    kinds = {t.type for t in inner(tokens)}
    assert kinds <= {*PLAIN, "strong_open", "strong_close", "image"}
    assert all(re.fullmatch(r"[\w-]+\.svg", str(t.attrs["src"])) for t in inner(tokens) if t.type == "image")
    assert not controls(text)
    page = Texts((report / "report" / "index.html").read_text())
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert "<script>alert(1)</script>" in page.text
    assert not controls((report / "report" / "index.html").read_text())
    for name in ("table.md", "table.tex"):
        assert not controls((report / "report" / name).read_text()), name


def test_figures_draw_dollars_as_dollars(report: Path) -> None:
    """matplotlib takes what stands between dollars for mathematics, and fails where it is none."""
    drawn = list((report / "report").glob("*.svg"))
    assert len(drawn) > 6
    texts = [element.text or "" for path in drawn for element in ET.parse(path).iter() if element.tag.endswith("text")]
    assert any("$\\frac{" in text for text in texts)
    assert not any(controls(text) for text in texts)
    assert not any("mathdefault" in text for text in texts)


@pytest.mark.parametrize("command", ["fairness", "tables", "claim", "drafts", "show", "check"])
def test_no_command_sends_an_escape_to_the_terminal(
    command: str, report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = report / "rows.jsonl"
    if command == "drafts":
        file = write(tmp_path / "drafts.jsonl", [renamed(one) for one in planted_drafts.fair()])
    if command in ("show", "check"):
        shown_rows = write(tmp_path / "rows.jsonl", [renamed(one) for one in fair()])
        results([command, str(shown_rows)])
    else:
        words = {"claim": ["--arm", "bf16 + bf16", "--bits", "50", "--margin", "1"]}.get(command, [])
        module = {"fairness": fairness, "tables": tables, "claim": claim, "drafts": drafts}[command]
        module.main([str(file), *words])
    said = capsys.readouterr()
    assert not controls(said.out + said.err)


def test_errors_of_users_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), user_errors("x"):
        raise ValueError("first\n  second \x1b[2J")
    assert capsys.readouterr().err == "x: first\n  second \\x1b[2J\n"


def test_markdown_of_ordinary_names_reads_as_they_do() -> None:
    for text in ("int4 hadamard + delta mode=grid", "bytes_raw_total", "107.2 (sd 1.1), 95 % [106.1, 108.3]", "-0.1 %"):
        assert markup.inline(text) == text
    assert markup.block("2 ranks, none") == "2 ranks, none"
    assert markdown.render(document.Document("a_b", []), "svg") == "# a_b\n"
