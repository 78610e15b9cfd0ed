"""What others install: the wheel and the sdist, built and tried in fresh environments.

Nothing is downloaded. A fresh environment has links to those packages of this one that the wheel's metadata asks for,
and that these ask for in turn; pip installs the wheel without an index. A package that we use and do not ask for is
missed.
"""

from __future__ import annotations

import email
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fsdp_lab.extras import PACKAGES, advice

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAIN_A_STEP = """
import comm_compress as cc, torch

methods = [name for name in cc.available() if cc.make(name) is not None]
assert len(methods) > 20, methods

def gradient(**directions):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    ranks = cc.VirtualRanks(model, 2, [], **directions)
    with ranks.gathered():
        for rank in range(2):
            model(torch.ones(4, 64)).square().mean().backward()
            ranks.collect(rank)
    ranks.reduce()
    return model.weight.grad

exact = gradient()
assert torch.equal(gradient(reduce_scatter="identity", all_gather="identity"), exact)
error = gradient(reduce_scatter="int8", all_gather="bf16") - exact
assert 0 < error.norm() / exact.norm() < 0.02, error
"""


def run(*command: str | Path, code: int = 0, folder: str | Path = "/") -> str:
    """What a command printed; it must end with ``code``. Python takes nothing from the checkout or the user's home."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)),
        env=inherited | {"PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, made from this checkout, and the wheel, made from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


class Environment:
    """A virtual environment that holds the wheel and what it asks for, and nothing else."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        self.packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        for name in needed(requirements_of(wheel), extras):
            self._link(importlib.metadata.distribution(name))
        wanted = f"{wheel}[{','.join(extras)}]" if extras else wheel
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-index", wanted)

    def _link(self, distribution: importlib.metadata.Distribution) -> None:
        """Packages are linked, not copied: torch alone has hundreds of megabytes."""
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            link = self.packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))

    def run(self, *command: str, code: int = 0) -> str:
        return run(self.python, *command, code=code)


def requirements_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])


def needed(requirements: list[str], extras: tuple[str, ...]) -> set[str]:
    """Names of all distributions that these requirements lead to."""
    names: set[str] = set()
    waiting = [(requirements, extras)]
    while waiting:
        lines, asked = waiting.pop()
        for requirement in map(Requirement, lines):
            applies = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *asked)
            )
            if applies and requirement.name not in names:
                names.add(requirement.name)
                theirs = importlib.metadata.distribution(requirement.name).requires or []
                waiting.append((theirs, tuple(requirement.extras)))
    return names


@pytest.fixture(scope="module")
def library(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("library"), built[1])


@pytest.fixture(scope="module")
def lab(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("lab"), built[1], "lab")


def test_the_wheel_holds_the_two_packages_and_their_data(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"comm_compress", "fsdp_lab"}
    tracked = [path for folder in ("comm_compress", "fsdp_lab") for path in (ROOT / folder).rglob("*.*")]
    expected = {str(p.relative_to(ROOT)) for p in tracked if p.is_file() and "__pycache__" not in p.parts}
    assert expected <= set(names), "the wheel lacks files of its packages: [tool.setuptools.package-data]"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_is_a_checkout(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("experiments", "analysis", "examples", "tests", "docs", "scripts")
    expected = {str(p.relative_to(ROOT)) for folder in folders for p in (ROOT / folder).rglob("*.*") if p.is_file()}
    missing = {name for name in expected - names if "__pycache__" not in name and not name.endswith(".ipynb")}
    assert not missing, "MANIFEST.in leaves these out"
    assert {"run_tests.sh", "run_safe_training.sh", "constraints.txt", "CHANGELOG.md", ".ci/run"} <= names


def test_the_library_needs_no_extra(library: Environment) -> None:
    library.run("-c", TRAIN_A_STEP)


def test_the_library_alone_brings_no_trainer_and_takes_no_general_name(library: Environment) -> None:
    absent = ["experiments", "analysis", "examples", "tests", "transformers", "pandas", "matplotlib", "yaml"]
    library.run("-c", f"from importlib.util import find_spec; assert not any(map(find_spec, {absent}))")


@pytest.mark.parametrize("command", ["settings", "results", "train"])
def test_a_command_without_its_packages_says_what_to_install(library: Environment, command: str) -> None:
    said = library.run("-m", f"fsdp_lab.{command}", "--help", code=2)
    assert re.fullmatch(r"\w+ is not installed: pip install 'fsdp-comm-compress\[lab\]'\n", said), said


@pytest.mark.parametrize(
    ("command", "word", "extra"),
    [
        ("analysis.report", "results/reference/fresh_weights/bar.jsonl", "analysis"),
        ("experiments.sweep", "--help", "lab"),
    ],
)
def test_so_does_a_command_of_a_checkout(library: Environment, command: str, word: str, extra: str) -> None:
    said = run(library.python, "-m", command, word, code=2, folder=ROOT)
    assert said.endswith(f" is not installed: pip install 'fsdp-comm-compress[{extra}]'\n")
    assert "Traceback" not in said


def test_a_command_that_needs_no_extra_runs_without(library: Environment) -> None:
    assert "usage: python -m fsdp_lab.trace" in library.run("-m", "fsdp_lab.trace", "--help")


def test_the_command_is_installed_and_says_what_the_wheel_has_not(library: Environment) -> None:
    command = library.python.with_name("fsdp-lab")
    assert run(command, "--version") == f"fsdp-lab {importlib.metadata.version('fsdp-comm-compress')}\n"
    assert "topk ratio=0.02" in run(command, "methods", "topk")
    said = run(command, "report", "--help", code=2)
    assert said.startswith("fsdp-lab report is a command of a checkout")
    said = run(command, "settings", "--help", code=2)
    assert said == "yaml is not installed: pip install 'fsdp-comm-compress[lab]'\n"


def test_an_import_of_another_program_fails_as_imports_do(library: Environment) -> None:
    said = library.run("-c", "import fsdp_lab.settings.reading.cli", code=1)
    assert "ModuleNotFoundError: No module named 'yaml'" in said


@pytest.mark.parametrize("command", [("settings", "get", "output_dir", "--"), ("train", "--help")], ids=lambda c: c[0])
def test_the_lab_extra_is_all_that_the_trainer_needs(lab: Environment, command: tuple[str, ...]) -> None:
    module, *flags = command
    lab.run("-m", f"fsdp_lab.{module}", *flags)


def test_advice_names_the_extra_that_brings_the_package() -> None:
    distributions = {"yaml": "PyYAML", "mlflow": "mlflow-skinny"} | {
        "liger_kernel": "liger-kernel",
        "flash_attn": "flash-attn",
    }
    for extra, packages in PACKAGES.items():
        brought = {Requirement(line).name for line in PROJECT["optional-dependencies"][extra]}
        assert {distributions.get(name, name) for name in packages} <= brought
    assert (
        advice(ModuleNotFoundError(name="yaml.nodes")) == "yaml is not installed: pip install 'fsdp-comm-compress[lab]'"
    )
    assert advice(ModuleNotFoundError(name="fsdp_lab.nothing")) is None
    assert advice(ValueError("yaml")) is None
