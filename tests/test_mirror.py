"""Tests lie where the code does: whoever changes a module finds what tests it by name.

The tests of ``package/folder/module.py`` are ``tests/package/folder/test_module.py``. Where modules of a folder work
together only, they are tested together, in ``tests/package/test_folder.py`` or in a file of ``tests/package/folder/``
that says what it is about. `ELSEWHERE` has the folders of which neither is so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import ALLOWED, ROOT, files

KERNELS = "comm_compress/kernels"
ELSEWHERE = {
    "analysis/report/language": "analysis/report/test_report.py",
    "analysis/report/pages": "analysis/report/test_report.py",
    "comm_compress/integrations/audit/whole_program/start": "comm_compress/integrations/audit/test_whole_program.py",
    "comm_compress/integrations/optim/replicated/parts": "comm_compress/integrations/optim/replicated/test_laws.py",
    "comm_compress/integrations/replicas": "comm_compress/integrations/outer/test_schedule.py",
    **{f"{KERNELS}/elements/{topic}": f"{KERNELS}/test_kernels.py" for topic in ("random", "residual")},
    f"{KERNELS}/coding/ulp": "comm_compress/methods/test_delta.py",
    f"{KERNELS}/quantisers/matrix_scales": "comm_compress/methods/quantisers/test_ecsq.py",
    f"{KERNELS}/coding/entropy": "comm_compress/wrappers/test_entropy.py",
    f"{KERNELS}/tools/triton": f"{KERNELS}/test_triton_kernels.py",
    **{f"examples/{folder}": "examples/test_examples.py" for folder in ("trainers", "parallel", "optimizers")},
    "experiments/speedrun/checks": "experiments/speedrun/test_verify.py",
    "fsdp_lab/checkpoint/files": "fsdp_lab/checkpoint/test_checkpoints.py",
    "fsdp_lab/commands/machine": "fsdp_lab/commands/test_doctor.py",
    "fsdp_lab/eagle/training": "fsdp_lab/eagle/test_train.py",
    "fsdp_lab/parallel/division": "fsdp_lab/parallel/models/test_divided.py",
    "fsdp_lab/settings/groups": "fsdp_lab/settings/test_config.py",
}
"""Where in ``tests`` a folder is tested that has no tests of its own name."""


def folders(package: str) -> set[str]:
    """Every folder of a package that holds code."""
    return {str(path.parent.relative_to(ROOT)) for path in files(package) if path.name != "__init__.py"}


def files_of_tests(package: str) -> Iterator[Path]:
    """The files of a package's tests, from the root."""
    return (path.relative_to(ROOT) for path in (ROOT / "tests" / package).rglob("test_*.py"))


@pytest.mark.parametrize("package", ALLOWED)
def test_every_folder_has_tests_of_its_name(package: str) -> None:
    for folder in folders(package):
        inside = any((ROOT / "tests" / folder).glob("test_*.py"))
        beside = (ROOT / "tests" / folder).parent / f"test_{Path(folder).name}.py"
        if inside or beside.exists():
            assert folder not in ELSEWHERE, f"{folder} has tests: not in ELSEWHERE"
        else:
            assert folder in ELSEWHERE, f"no tests/{folder}/test_*.py: write one, or say in ELSEWHERE what tests it"
            assert (ROOT / "tests" / ELSEWHERE[folder]).exists(), ELSEWHERE[folder]


@pytest.mark.parametrize("package", ALLOWED)
def test_tests_lie_in_folders_that_there_are(package: str) -> None:
    for path in files_of_tests(package):
        folder = ROOT / path.parent.relative_to("tests")
        assert folder.is_dir(), f"{path}: there is no {folder.relative_to(ROOT)}"


@pytest.mark.parametrize("package", ALLOWED)
def test_a_test_that_is_named_after_a_module_lies_beside_it(package: str) -> None:
    """One that is named after none is about several: it lies in the folder that has them all."""
    modules = {str(path.relative_to(ROOT)) for path in files(package)}
    for path in files_of_tests(package):
        folder, name = path.parent.relative_to("tests"), path.stem.removeprefix("test_")
        here = f"{folder / name}.py" in modules or (ROOT / folder / name).is_dir() or folder.name == name
        of_that_name = [module for module in modules if Path(module).stem == name]
        tested = [module for module in of_that_name if (ROOT / "tests" / module).with_name(path.name).exists()]
        assert here or tested == of_that_name, f"{path} lies elsewhere than {of_that_name}"
