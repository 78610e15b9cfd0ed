"""Help that is printed without the program is the program's own, and needs neither torch nor transformers."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from fsdp_lab.commands.settings_help import SETTINGS, asked_for, show

BY_RANKS = {"fsdp_lab.eagle.train"}  # programs of ranks take over the output as they start


@pytest.mark.parametrize("module", sorted(SETTINGS.keys() - BY_RANKS))
def test_it_is_what_the_program_prints(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as quick:
        show(module)
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as own:
        importlib.import_module(module).main(["--help"])
    assert shown == capsys.readouterr().out
    assert (quick.value.code, own.value.code) == (0, 0)
    assert "--config" in shown


@pytest.mark.parametrize("module", sorted(SETTINGS))
def test_it_is_of_the_settings_that_the_program_reads(module: str) -> None:
    place, _, name = SETTINGS[module].rpartition(".")
    program = importlib.import_module(module)
    assert getattr(program, name) is getattr(importlib.import_module(place), name)


def test_nothing_heavy_is_imported_for_it() -> None:
    program = (
        "import sys\nfrom fsdp_lab.commands.settings_help import SETTINGS, show\n"
        "for module in SETTINGS:\n"
        "    try:\n        show(module)\n    except SystemExit:\n        pass\n"
        "print([name for name in ('torch', 'transformers', 'numpy', *SETTINGS) if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_only_help_is_answered() -> None:
    assert asked_for("fsdp_lab.chat", ["--model_dir", "x", "-h"])
    assert not asked_for("fsdp_lab.chat", ["--model_dir", "x"])
    assert not asked_for("fsdp_lab.trace", ["--help"])
