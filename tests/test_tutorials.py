"""What tutorials show is true: programs run as they stand there, copies are copies, commands and flags exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from experiments.sweeps.recipe.recipe import read as read_recipe
from fsdp_lab.commands.table import COMMANDS
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.cli import read

ROOT = Path(__file__).resolve().parents[1]
ENGLISH = [*sorted((ROOT / "docs/tutorials").glob("*.md")), ROOT / "docs/faq.md", ROOT / "docs/troubleshooting.md"]
CHINESE = sorted((ROOT / "docs/zh").rglob("*.md"))
MARKED = re.compile(r"<!-- (from|run|recipe): (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```(?:python|yaml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^ {4}|`)(?:sudo \.venv/bin/)?(fsdp-lab [^#`\n]*)", re.MULTILINE)


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, kind: str) -> dict[str, str]:
    """The fenced blocks of a page whose marker is of this kind, by the name in it; those of one name together."""
    found: dict[str, str] = {}
    for marker, name, text in MARKED.findall(page.read_text(encoding="utf-8")):
        if marker == kind:
            found[name] = found.get(name, "") + text
    return found


@pytest.mark.parametrize("page", ENGLISH, ids=relative)
def test_every_program_is_copied_or_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(FENCED.findall(text)) == len(MARKED.findall(text)), "each block has a marker that says what it is"
    for marker, name, block in MARKED.findall(text):
        if marker == "from":
            assert block in (ROOT / name).read_text(encoding="utf-8"), f"no longer in {name}:\n{block}"


@pytest.mark.parametrize("page", [*ENGLISH, *CHINESE], ids=relative)
def test_every_command_exists_and_takes_its_flags(page: Path) -> None:
    known = {command.words for command in COMMANDS}
    for line in COMMAND.findall(page.read_text(encoding="utf-8")):
        words = shlex.split(line)[1:]
        if words[:1] in (["--help"], ["COMMAND"], ["..."]) or not words:
            continue
        assert words[0] in known or " ".join(words[:2]) in known, line
        flags = words[1:] if words[0] == "train" else words[words.index("--") + 1 :] if "--" in words else []
        if flags and flags[0] != "--help":
            assert read(TrainConfig, flags, "train")[1] == [], line


def test_a_wrong_flag_would_be_noticed() -> None:
    assert read(TrainConfig, ["--max_stepz", "3"], "train")[1]


def test_the_method_keeps_all_laws_and_prints_what_stands_there(tmp_path: Path) -> None:
    page = ROOT / "docs/tutorials/write-a-method.md"
    programs = blocks(page, "run")
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name, arguments in (("cyclic.py", ["cyclic every=8"]), ("looking.py", [])):
        ran = subprocess.run(
            [sys.executable, name, *arguments],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert textwrap.indent(ran.stdout, "    ") in page.read_text(encoding="utf-8"), ran.stdout


def test_the_recipe_is_one(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs/tutorials/compare-methods.md", "recipe").values()
    assert {"none", "identity + identity", "bf16 + bf16"} < set(yaml.safe_load(text)["arms"])
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    read_recipe(tmp_path / "mine.yaml")  # refuses what it does not know


@pytest.mark.parametrize("page", CHINESE, ids=relative)
def test_a_translation_has_the_programs_of_its_page(page: Path) -> None:
    name = page.read_text(encoding="utf-8").partition("translates: ")[2].partition(" ")[0]
    source = (ROOT / name).read_text(encoding="utf-8")
    assert FENCED.findall(page.read_text(encoding="utf-8")) == FENCED.findall(source)
