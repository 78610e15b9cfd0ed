"""Methods from other packages: the example of docs/library/plugins.md as it stands there, and broken plugins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from comm_compress import conformance

ROOT = Path(__file__).resolve().parents[2]


DESCRIBE = """
import comm_compress as cc
print(*cc.available())
print(*(" | ".join((s["meaning"], s["limits"], s["example"])) for s in cc.describe("halfbits")["settings"]))
cc.make("halfbit")
"""


def example(name: str) -> str:
    """The indented block that follows ``name`` in the documentation."""
    text = (ROOT / "docs/library/plugins.md").read_text()
    found = re.search(rf"`{re.escape(name)}`:\n\n((?:    .*\n|\n)+)", text)
    assert found
    return textwrap.dedent(found[1])


def entry_points() -> str:
    """What pip would make of the documentation's pyproject.toml."""
    section = example("pyproject.toml").partition('[project.entry-points."comm_compress.methods"]\n')[2]
    assert section
    return "[comm_compress.methods]\n" + section.replace('"', "")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with the example and a broken package, as pip would leave them."""
    (tmp_path / "half_bits.py").write_text(example("half_bits.py"))
    (tmp_path / "shattered.py").write_text("import numbers_of_a_package_that_is_not_there\n")
    for name, points in (
        ("half_bits", entry_points()),
        ("shattered", "[comm_compress.methods]\nshattered = shattered\n"),
    ):
        info = tmp_path / f"{name}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(points)
    return tmp_path


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=installed, capture_output=True, text=True, timeout=120
    )


def test_the_documented_plugin_works_beside_a_broken_one(installed: Path) -> None:
    listed = run(installed, "-c", DESCRIBE)
    assert "halfbits" in listed.stdout.split()
    assert "how many bits of the mantissa are kept. | between 0 and 7 | halfbits bits=6" in listed.stdout
    assert "int8" in listed.stdout.split(), "the broken one takes nothing down"
    assert "plugin shattered failed to load" in listed.stderr
    refusal = listed.stderr.splitlines()[-1]
    assert "did you mean 'halfbits'" in refusal
    assert "shattered (ModuleNotFoundError" in refusal
    assert "half_bits" not in refusal.partition("failed to load")[2]


CHECK = """
import sys
from comm_compress import conformance
sys.argv[1:] = ["halfbits", '{"bits": 9}']
assert conformance.main() == 2
sys.argv[1:] = ["halfbits", '{"bits": 4, "error_feedback": true}']
sys.exit(conformance.main())
"""


def test_the_laws_hold_for_the_documented_plugin(installed: Path) -> None:
    checked = run(installed, "-c", CHECK)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    lines = checked.stdout.splitlines()
    assert len(lines) >= len(conformance.GRADIENT_LAWS)
    assert "holds   feedback_loses_nothing" in lines


def test_the_documented_look_at_it_prints_what_is_documented(installed: Path) -> None:
    (installed / "looking.py").write_text(example("looking.py"))
    printed = run(installed, "looking.py").stdout
    text = (ROOT / "docs/library/plugins.md").read_text()
    assert printed.splitlines()[1].startswith("halfbits: 16.000 bits")
    assert textwrap.indent(printed, "    ") in text


def test_a_broken_law_is_found(installed: Path) -> None:
    source = (installed / "half_bits.py").read_text()
    (installed / "half_bits.py").write_text(
        source.replace("torch.where(narrow.isfinite(), kept, torch.nan)", "kept * 0")
    )
    checked = run(installed, "-m", "comm_compress.conformance", "halfbits")
    assert checked.returncode == 1
    assert "BROKEN  parameters_arrive_alike" in checked.stdout
