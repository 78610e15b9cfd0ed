"""Imports go one way: what the folders say, held."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# what each package may import of ours
ALLOWED = {
    "comm_compress": {"comm_compress"},
    "fsdp_lab": {"fsdp_lab", "comm_compress"},
    "experiments": {"experiments", "fsdp_lab", "comm_compress"},
    "analysis": {"analysis"},
    "examples": {"examples", "comm_compress"},
}
# how every command begins and ends, and how arms are written: analysis may have these; they need none but each other
SHARED = (
    "fsdp_lab.extras",
    "fsdp_lab.files.errors",
    "fsdp_lab.settings.user_errors",
    "fsdp_lab.settings.flags",
    "fsdp_lab.settings.flag_values",
    "comm_compress.labels",
)
# what experiments that judge runs may have of analysis: statistics over seeds, which need no torch
STATISTICS = "analysis.statistics."
# The layers of each package, lowest first: a file imports files of its own folder and of lower layers. Folders of one
# layer know nothing of each other. `__main__.py` is a command: it may import all of its package.
LAYERS = {
    "comm_compress": [
        {"labels", "description", "kernels"},
        {"core"},
        {"wrappers"},
        {"registry", "drive"},
        {"methods"},
        {"integrations", "laws", "inspection", "describing"},
        {"conformance"},
        {"__init__"},
    ],
    "comm_compress/kernels": [
        {"tools", "dispatch"},
        {"elements", "packing", "coding"},
        {"selection", "quantisers", "projections"},
        {"__init__"},
    ],
    "comm_compress/methods": [
        {"identity", "shared"},
        {"quantisers", "sparsifiers", "projections", "owners", "delta", "zero"},
        {"__init__"},
    ],
    "comm_compress/integrations": [
        {"loss_scale", "optimizer_steps", "rank_states"},
        {"handle", "reshard"},
        {"allreduce", "replicas"},
        {
            "fsdp",
            "ddp",
            "optim",
            "outer",
            "parallel",
            "virtual",
            "audit",
        },  # the audit looks at collectives from outside: it knows none of the others
        {"__init__"},
    ],
    "fsdp_lab": [
        {"extras", "moved"},
        {"files", "trace", "__init__"},
        {"settings"},
        {"ranks", "results"},
        {"data", "measure"},
        {"models"},
        {"parallel"},
        {"training"},
        {"checkpoint"},
        {"run"},
        {"train", "validate", "eagle"},
        {"chat", "launcher", "audit"},
        {"launch"},
        {"commands"},
    ],
    "fsdp_lab/run": [
        {"storage", "display", "trackers", "card", "environment", "goals", "entry", "__init__"},
        {"record"},
        {"ending"},
        {"run"},
        {"steps"},
    ],
    "experiments": [
        {"runs", "__init__"},
        {"network"},
        {"drafts", "faults", "fidelity", "sweeps"},
        {"bench", "finetuning", "links", "sweep"},
        {"planning", "judge", "gpu_day"},
        {"speedrun"},
    ],
    "experiments/speedrun": [
        {"task", "__init__"},
        {"race"},
        {"score", "entry"},
        {"checks", "running", "calibrate"},
        {"verify"},
        {"records"},
    ],
    "experiments/judge": [
        {"subject", "__init__"},
        {"children"},
        {"measures", "objections", "trainings"},
        {"stage"},
        {"__main__"},
    ],
    "analysis": [
        {"rows", "__init__"},
        {"predict"},
        {"statistics"},
        {"checks", "figures"},
        {"tables"},
        {"claim", "drafts", "costs"},
        {"report", "notebooks"},
        {"judged", "chart"},
    ],
    "analysis/report": [
        {"document", "entries", "numbers", "opening_words", "plan", "__init__"},
        {"language"},
        {"drawn"},
        {"opening", "pages"},
        {"contents"},
        {"making"},
    ],
}
MOST_FOLDERS = 13  # that one has to choose from on entering a package; its commands stand beside them
# fsdp_lab has one more: the command `fsdp-lab` is several files that belong together (which word runs what, what is
# shown of methods and of the machine), on top of all and used by none. Who reads how a run works never enters it.
FRONT_DOOR = "commands"
MOST_THINGS = 14  # files and folders in a folder


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_packages_import_downwards_only() -> None:
    for package, allowed in ALLOWED.items():
        for path in files(package):
            names = {name for name in imported(path) if package != "analysis" or not name.startswith(SHARED)}
            names = {name for name in names if package != "experiments" or not name.startswith(STATISTICS)}
            ours = {name.split(".")[0] for name in names} & ALLOWED.keys()
            assert ours <= allowed, f"{path.relative_to(ROOT)} imports {sorted(ours - allowed)}"


@pytest.mark.parametrize("place", LAYERS)
def test_folders_import_lower_layers_only(place: str) -> None:
    layers = {folder: number for number, folders in enumerate(LAYERS[place]) for folder in folders}
    package = place.replace("/", ".") + "."
    for path in files(place):
        own = path.relative_to(ROOT / place).parts[0].removesuffix(".py")
        if path.name == "__main__.py":
            continue
        assert own in layers, f"{path.relative_to(ROOT)}: say in LAYERS which layer it is on"
        for name in imported(path):
            other = name.removeprefix(package).split(".")[0] if name.startswith(package) else own
            if other in layers:  # else a name of the package's own face
                lower = other == own or layers[other] < layers[own]
                assert lower, f"{path.relative_to(ROOT)} imports {name}, which is not on a lower layer"


def test_a_layer_has_few_folders() -> None:
    for place in ("comm_compress", "fsdp_lab", "experiments", "analysis"):
        folders = sorted(
            p.name for p in (ROOT / place).iterdir() if (p / "__init__.py").exists() and p.name != FRONT_DOOR
        )
        assert len(folders) <= MOST_FOLDERS, f"{place}: {len(folders)} folders: {folders}"


@pytest.mark.parametrize("package", ALLOWED)
def test_a_folder_has_few_things(package: str) -> None:
    for folder in {path.parent for path in files(package)} - {ROOT / package}:
        things = [p.name for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
        things = sorted(set(things) - {"__init__.py", "__main__.py"})
        assert len(things) <= MOST_THINGS, f"{folder.relative_to(ROOT)}: {len(things)} things: {things}"


@pytest.mark.parametrize("package", ALLOWED)
def test_no_file_imports_itself_over_others(package: str) -> None:
    modules = modules_of(package)
    needs = {module: needed_by(path, modules) - {module, package} for module, path in modules.items()}
    assert_no_circle(needs)


@pytest.mark.parametrize("package", ALLOWED)
def test_no_two_folders_import_each_other(package: str) -> None:
    """In every folder, of the files and folders in it; a folder's command may import what it shows from anywhere."""
    modules = modules_of(package)
    needs: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for other in needed_by(path, modules) if path.name != "__main__.py" else ():
            inside, across = beside_each_other(module, other)
            if inside and across:  # else one of the two is the folder of the other
                needs.setdefault(inside, set()).add(across)
    assert_no_circle(needs)


def modules_of(package: str) -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files(package)
    }


def needed_by(path: Path, modules: Collection[str]) -> set[str]:
    """The modules that a file imports, wherever in the file."""
    return {
        module for name in imported(path) if (module := name if name in modules else name.rpartition(".")[0]) in modules
    }


def beside_each_other(module: str, other: str) -> tuple[str, str]:
    """The two in the folder that both are in, each a file or the folder that leads to it; empty: the folder itself."""
    mine, its = module.split("."), other.split(".")
    depth = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), min(len(mine), len(its)))
    return tuple(".".join(parts[: depth + 1]) if len(parts) > depth else "" for parts in (mine, its))  # type: ignore[return-value]


def assert_no_circle(needs: Mapping[str, Collection[str]]) -> None:
    done: set[str] = set()

    def follow(one: str, trail: tuple[str, ...]) -> None:
        assert one not in trail, f"a circle: {' -> '.join([*trail[trail.index(one) :], one])}"
        if one not in done:
            for other in sorted(needs.get(one, ())):
                follow(other, (*trail, one))
            done.add(one)

    for one in sorted(needs):
        follow(one, ())


# a topic of kernels is an interface and implementations: which of them may not know which
APART = {
    "interface": {"reference", "cpu", "triton"},
    "reference": {"cpu", "triton"},
    "cpu": {"triton"},
    "triton": {"cpu"},
}


def test_no_kernel_needs_one_of_another_device() -> None:
    """A reference runs without numba's loops, a GPU's kernels without the CPU's, and an interface without any."""
    for path in (ROOT / "comm_compress/kernels").glob("*/*/*.py"):
        for name in imported(path):
            if name.startswith("comm_compress.kernels.") and path.stem in APART:
                others = APART[path.stem] & set(name.split(".")[3:])
                assert not others, f"{path.relative_to(ROOT)} imports {name}"


def test_the_trainer_and_the_examples_use_the_librarys_public_face_only() -> None:
    for path in [*files("fsdp_lab"), *files("examples")]:
        inner = {name for name in imported(path) if name.startswith("comm_compress.")}
        assert not inner, f"{path.relative_to(ROOT)} imports {sorted(inner)}"


def test_analysis_needs_no_torch() -> None:
    shared = [ROOT / f"{name.replace('.', '/')}.py" for name in SHARED]
    for path in [*files("analysis"), ROOT / "fsdp_lab" / "__init__.py", ROOT / "fsdp_lab" / "settings" / "__init__.py"]:
        assert not any(name.split(".")[0] == "torch" for name in imported(path)), path
    for path in shared:
        others = {name for name in imported(path) if not name.startswith(SHARED)}
        assert {name.split(".")[0] for name in others} <= sys.stdlib_module_names, path
    program = f"import sys, {', '.join(SHARED)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_sweeps_need_no_torch_until_a_method_is_named() -> None:
    """So their ``--help``, plans of `none` and mistakes come at once."""
    program = "import sys, experiments.sweep; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_only_the_transport_calls_collectives() -> None:
    calls = ("all_to_all", "all_reduce(", "isend(", "irecv(", "all_gather", "reduce_scatter_single(", "broadcast(")
    for path in files("comm_compress"):
        if path.parts[-2:] not in (("drive", "transport.py"), ("drive", "stock.py"), ("drive", "_compat.py")):
            text = path.read_text()
            assert not any(f"dist.{call}" in text for call in calls), path
