"""Methods from papers pass every check on real ranks; cheats, which keep all laws, are found and named."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import comm_compress as cc
from comm_compress import registry
from comm_compress.core import rounds
from comm_compress.drive import simulate, transport
from experiments.judge.measures import bytes_by_ranks, laws, rank
from experiments.judge.subject import channels, loading, plugin
from experiments.judge.subject.job import Fact, Job
from tests.distributed import run_ranks

FOLDER = Path(__file__).parent / "judged"
PAPERS = ("stc", "drive", "gspar")
BROKEN = {  # by each cheat: the check that finds it, and words of the message
    "smuggler": {
        "only_messages_reach_other_ranks": "variables that changed meanwhile: EXACT",
        "what_a_rank_says_it_gave_arrives": "off that sum",
    },
    "modest": {"bytes_counted_are_bytes_moved": "32768 bytes were moved, and its messages say 4096"},
    "homebody": {"own_rows_are_like_others": "the uncompressed gradient is kept and used"},
    "mailbox": {"opens_nothing": "judged-mailbox-"},
    "tamperer": {
        "bytes_counted_are_bytes_moved": "bytes were moved",
        "leaves_the_library_alone": "comm_compress.core.rounds.sent_by",
    },
    "favourite": {"ranks_are_alike": "one rank is favoured"},
    "caller": {"bytes_counted_are_bytes_moved": "called torch's collectives by itself"},
}
NAMES = (*PAPERS, *BROKEN)


def job(name: str, folder: Path, before: channels.Library) -> Job:
    return Job(FOLDER / f"{name}.py", name, loading.load(FOLDER / f"{name}.py"), before, {"folder": str(folder)})


def on_rank(folder: str, mailbox: str) -> dict[str, list[Fact]]:
    os.environ["TMPDIR"] = mailbox  # where mailbox.py leaves its letters
    before = channels.library()
    found = {}
    for name in NAMES:
        (Path(folder) / name).mkdir(exist_ok=True)
        mine = job(name, Path(folder) / name, before)
        found[name] = list(rank.collectives(mine, dist.get_rank(), Path(folder) / name))
        for changed in channels.replaced(before):  # tamperer's patch is not the next one's
            module, _, attribute = changed.rpartition(".")
            setattr(sys.modules[module], attribute, before[changed])
    return found


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, list[Fact]]]]:
    """What two real ranks found of every file, and the folder with their tensors."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_ranks(2, on_rank, str(folder), str(tmp_path_factory.mktemp("box")), alone=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_cheat_is_found_by_its_check_and_a_paper_by_none(
    name: str,
    by_ranks: tuple[Path, list[dict[str, list[Fact]]]],
    fresh_registry: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder, lines = by_ranks
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for module in (rounds, simulate, transport):
        monkeypatch.setattr(module, "sent_by", rounds.sent_by)  # so that it is put back after tamperer
    mine = job(name, folder / name, {})
    found = list(bytes_by_ranks.found(mine, [of_rank[name] for of_rank in lines], folder / name))
    broken = {fact["name"]: fact["message"] for fact in found if fact["kind"] == "check" and not fact["holds"]}
    expected = BROKEN.get(name, {})
    assert broken.keys() == expected.keys(), broken
    for check, words in expected.items():
        assert words in broken[check]
    assert sum(fact["kind"] == "check" for fact in found) >= 7


@pytest.mark.parametrize("name", ["stc", "gspar", "smuggler", "modest", "favourite"])
def test_papers_keep_all_laws_and_so_do_cheats(name: str, fresh_registry: None) -> None:
    found = [fact for fact in laws.facts(job(name, FOLDER, {})) if fact["kind"] == "law"]
    assert [fact["message"] for fact in found if not fact["holds"]] == []
    assert len(found) >= 9


def test_a_file_that_is_installed_as_a_plugin_can_be_judged(fresh_registry: None) -> None:
    first = loading.load(FOLDER / "stc.py")
    again = loading.load(FOLDER / "stc.py")
    assert again.module is first.module
    assert again.names == first.names == ["stc"]


def test_a_file_offered_as_a_plugin_registers_its_method(fresh_registry: None, tmp_path: Path) -> None:
    plugin.write_plugin(tmp_path, FOLDER / "stc.py")
    sys.path.insert(0, str(tmp_path))
    try:
        points = importlib.metadata.entry_points(group=registry.PLUGINS, name=plugin.PLUGIN)
        points[plugin.PLUGIN].load()
        assert cc.make("stc ratio=0.1") is not None
    finally:
        sys.modules.pop(plugin.PLUGIN, None)
