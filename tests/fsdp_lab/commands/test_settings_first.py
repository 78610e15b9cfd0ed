"""Help and complaints that come before a program is imported are its own, and need neither torch nor transformers."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from fsdp_lab.commands.settings_first import SETTINGS, read_first

BY_RANKS = {"fsdp_lab.eagle.train"}  # programs of ranks take over the output as they start
MISTAKES = {"help": ["--help"], "no such flag": ["--nope", "3"], "no value": ["--config"]}


@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("module", sorted(SETTINGS.keys() - BY_RANKS))
def test_it_is_what_the_program_says(module: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as quick:
        read_first(module, words)
    said = capsys.readouterr()
    with pytest.raises(SystemExit) as own:
        importlib.import_module(module).main(words)
    assert said == capsys.readouterr()
    assert quick.value.code == own.value.code == (0 if words == ["--help"] else 2)


@pytest.mark.parametrize("module", sorted(SETTINGS))
def test_it_is_of_the_settings_that_the_program_reads(module: str) -> None:
    place, _, name = SETTINGS[module].rpartition(".")
    program = importlib.import_module(module)
    assert getattr(program, name) is getattr(importlib.import_module(place), name)


def test_nothing_heavy_is_imported_for_it() -> None:
    program = (
        "import sys\nfrom fsdp_lab.commands.settings_first import SETTINGS, read_first\n"
        "for module in SETTINGS:\n"
        "    for words in (['--help'], ['--nope', '3']):\n"
        "        try:\n            read_first(module, words)\n        except SystemExit:\n            pass\n"
        "print([name for name in ('torch', 'transformers', 'numpy', *SETTINGS) if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_settings_that_can_be_read_are_left_to_the_program() -> None:
    read_first("fsdp_lab.eagle.evaluate", ["--target_dir", ".", "--draft_dir", "."])
    read_first("fsdp_lab.trace", ["--help"])
