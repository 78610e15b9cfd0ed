"""Training on features that are kept is the same, bit for bit, whatever was kept; and nothing wrong is ever read."""

from __future__ import annotations

import random
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load, save

from fsdp_lab import results
from fsdp_lab.data.chats.examples import Example
from fsdp_lab.eagle.data.features import FeatureFolder, Features, digest_of_target
from fsdp_lab.eagle.data.tokens import collate
from fsdp_lab.eagle.draft.config import EagleConfig, check
from fsdp_lab.eagle.draft.folder import load_draft
from fsdp_lab.eagle.draft.target import Seen, Target
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel
from fsdp_lab.results.validation import problems
from fsdp_lab.run.display.summary import summary
from fsdp_lab.settings.reading.fields import ConfigError
from tests.distributed import preload, run_program, run_ranks, torchrun_environment
from tests.fsdp_lab.checkpoint.test_resume import same
from tests.fsdp_lab.eagle.test_train import _main, chats, run, words
from tests.fsdp_lab.eagle.tiny import FAMILIES, VOCABULARY, save_target, tiny_draft, tiny_target
from tests.fsdp_lab.training_ranks import Training, train_all

preload("fsdp_lab.eagle.train")
CPU, PLENTY = torch.device("cpu"), 10**9
STEPS, STOP = 4, 2


def some_examples(count: int = 5) -> list[Example]:
    """Of 1, 8, 15, ... tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(VOCABULARY, (1 + 7 * i,), generator=generator) for i in range(count)]
    return [Example(str(i), t, torch.ones(len(t), dtype=torch.bool)) for i, t in enumerate(tokens)]


def features_of(target: Target, folder: Path, limit: int = PLENTY) -> Features:
    ranks: Any = SimpleNamespace(device=CPU, rank=0, is_first=True, sum=lambda x: x, broadcast=lambda x: x)
    return Features(target, folder, limit, ranks)


def counts(features: Features) -> tuple[int, int]:
    """Read, computed."""
    row = features.row()
    return row["features_read"], row["features_computed"]


def equal(one: Seen, other: Seen) -> bool:
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def size_of(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to write more into any file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---- what a batch is given --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_are_the_same_whatever_was_kept(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """In an empty folder, a full one, one with room for some; in whatever batches the conversations are dealt."""
    target, examples = tiny_target(family, dtype), some_examples()
    batch = collate(examples)
    cold = features_of(target, tmp_path / "a")
    seen = cold.seen(batch)
    assert counts(cold) == (0, 5)
    assert seen.features.dtype == seen.last.dtype == dtype
    warm = features_of(target, tmp_path / "a")
    assert equal(warm.seen(batch), seen)
    assert counts(warm) == (5, 0)
    half = features_of(target, tmp_path / "b", size_of(entries(tmp_path / "a")) // 2)
    assert equal(half.seen(batch), seen)
    assert equal(half.seen(batch), seen)
    read, computed = counts(half)
    assert 0 < read < 5
    assert read + computed == 10
    for rank in range(2):
        mine = range(rank, 5, 2)
        part = features_of(target, tmp_path / "c").seen(collate([examples[i] for i in mine]))
        for row, i in enumerate(mine):
            length = len(examples[i].tokens)
            assert all(torch.equal(x[row, :length], y[i, :length]) for x, y in zip(part, seen, strict=True))
            assert not any(bool(x[row, length:].any()) for x in part)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_they_are_those_of_the_batch_to_rounding(
    family: str, dtype: torch.dtype, rounding: float, tmp_path: Path
) -> None:
    target, batch = tiny_target(family, dtype), collate(some_examples())
    together, alone = target(batch.tokens), features_of(target, tmp_path).seen(batch)
    for one, other in zip(alone, together, strict=True):
        assert one.shape == other.shape
        for i, length in enumerate(batch.lengths):
            expected = other[i, :length]
            torch.testing.assert_close(one[i, :length], expected, rtol=0, atol=rounding * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_know_nothing_of_padding(dtype: torch.dtype, tmp_path: Path) -> None:
    target = tiny_target("llama", dtype)
    model = EagleTrainingModel(target, tiny_draft(target), 3)
    batch = collate(some_examples())
    seen = features_of(target, tmp_path).seen(batch)
    padding = (torch.arange(batch.tokens.shape[1]) >= torch.tensor(batch.lengths)[:, None])[..., None]

    def trained(seen: Seen | None) -> list[torch.Tensor]:
        loss = model(batch.tokens, batch.loss_mask, None, seen).loss
        return [loss, *torch.autograd.grad(loss, list(model.draft.parameters()))]

    plain, noisy, online = trained(seen), trained(Seen(*(x + 3 * padding.to(dtype) for x in seen))), trained(None)
    assert all(bool(x.any()) for x in plain)
    assert all(torch.equal(a, b) for a, b in zip(plain, noisy, strict=True))
    if dtype == torch.float32:
        torch.testing.assert_close(plain, online, rtol=1e-4, atol=1e-5)


# ---- nothing of another target, nothing damaged -----------------------------------------------------------------


def test_another_target_is_another_folder(tmp_path: Path) -> None:
    """By what it computes, not by where it lies: the last bit of a weight, the dtype, layers, settings, threads."""
    for name in ("target", "copy"):
        save_target(tmp_path / name)
    one, copy = (Target.from_folder(tmp_path / name, torch.float32) for name in ("target", "copy"))
    known = digest_of_target(one, CPU)
    assert digest_of_target(copy, CPU) == known
    weight = copy.blocks[-1].mlp.down_proj.weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    others = [copy, Target.from_folder(tmp_path / "target", torch.bfloat16), tiny_target("llama", torch.float32)]
    digests = [digest_of_target(other, CPU) for other in others]
    digests.append(digest_of_target(Target(others[-1].hf, (2, 3, 5)), CPU))
    one.config.rms_norm_eps *= 2
    digests.append(digest_of_target(one, CPU))
    one.config.rms_norm_eps /= 2
    torch.set_num_threads(2)
    digests.append(digest_of_target(one, CPU))
    torch.set_num_threads(1)
    assert digest_of_target(one, CPU) == known
    assert len({known, *digests}) == 1 + len(digests)


def test_a_changed_target_reads_nothing_of_before(tmp_path: Path) -> None:
    target, batch = tiny_target("llama", torch.float32), collate(some_examples())
    before = features_of(target, tmp_path).seen(batch)
    target.blocks[0].mlp.down_proj.weight.data.mul_(2)
    again = features_of(target, tmp_path)
    assert not equal(again.seen(batch), before)
    assert counts(again) == (0, 5)


def test_a_conversation_is_known_by_its_tokens(tmp_path: Path) -> None:
    """Not by its place or name, nor by what is supervised; cut shorter, it is another one."""
    target, examples = tiny_target("llama", torch.float32), some_examples()
    features_of(target, tmp_path).seen(collate(examples))
    moved = [Example("other", e.tokens, ~e.said) for e in reversed(examples)]
    cut = Example("0", examples[-1].tokens[:-1], examples[-1].said[:-1])
    again = features_of(target, tmp_path)
    again.seen(collate([*moved, cut]))
    assert counts(again) == (5, 1)


def test_a_damaged_entry_is_found_and_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut anywhere, or with one bit of any part of it changed."""
    target, batch = tiny_target("llama", torch.float32), collate(some_examples(2)[1:])
    seen = features_of(target, tmp_path).seen(batch)
    (path,) = entries(tmp_path)
    whole, draw = path.read_bytes(), random.Random(0)
    data_at = 8 + int.from_bytes(whole[:8], "little")
    damaged = [whole[:length] for length in (0, 1, 7, 8, 9, data_at, data_at + 1, len(whole) - 1)]
    damaged.append(whole + b"x")
    kept = load(whole)
    otherwise = kept["features"].reshape(-1, 8), kept["features"].view(torch.int32)  # the same bytes
    damaged += [save({**kept, "features": other}) for other in otherwise]
    for place in [*range(data_at), *draw.sample(range(data_at, len(whole)), 100)]:
        changed = bytes([whole[place] ^ (1 << draw.randrange(8))])
        damaged.append(whole[:place] + changed + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        features = features_of(target, tmp_path)
        assert equal(features.seen(batch), seen)
        if content[data_at:] != whole[data_at:]:  # one bit of the header may change nothing that is read
            assert counts(features) == (0, 1)
        if counts(features) == (0, 1):
            assert path.read_bytes() == whole
            assert "is damaged and made anew" in capsys.readouterr().err


def test_damage_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, batch = tiny_target("llama", torch.float32), collate(some_examples())
    seen = features_of(target, tmp_path).seen(batch)
    for path in entries(tmp_path):
        path.write_bytes(path.read_bytes()[:-3])
    again = features_of(target, tmp_path)
    assert equal(again.seen(batch), seen)
    assert counts(again) == (0, 5)
    assert capsys.readouterr().err.count("damaged") == 1


def test_an_entry_under_another_name_is_not_read(tmp_path: Path) -> None:
    target = tiny_target("llama", torch.float32)
    one, two = (collate([Example("a", torch.full((9,), i), torch.ones(9, dtype=torch.bool))]) for i in range(2))
    features_of(target, tmp_path).seen(one)
    (first,) = entries(tmp_path)
    seen = features_of(target, tmp_path).seen(two)
    (second,) = set(entries(tmp_path)) - {first}
    second.write_bytes(first.read_bytes())
    assert equal(features_of(target, tmp_path).seen(two), seen)


def _killed_while_writing() -> None:
    """By the kernel, in the middle of the second conversation's file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    torch.set_num_threads(1)
    with files_of_at_most(2000):
        features_of(tiny_target("llama", torch.float32), Path(sys.argv[1])).seen(collate(some_examples()))


def test_a_process_killed_while_writing_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    code, _, _ = run_program(_killed_while_writing, [[str(tmp_path / "a")]], [{}])
    assert code == -signal.SIGXFSZ
    left = sorted(path.stat().st_size for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(left) == 2, "a whole file and half of one"
    assert left[1] == 2000
    target, batch = tiny_target("llama", torch.float32), collate(some_examples())
    again = features_of(target, tmp_path / "a")
    assert equal(again.seen(batch), features_of(target, tmp_path / "b").seen(batch))
    assert counts(again) == (1, 4)
    assert again.row()["features_gb"] * 1e9 == pytest.approx(size_of(entries(tmp_path / "a")) + 2000)


# ---- the folder -------------------------------------------------------------------------------------------------


def _filled(folder: Path) -> tuple[list[float], tuple[int, int]]:
    """All conversations twice, each rank in an order of its own."""
    target, examples = tiny_target("qwen2", torch.float32), some_examples(9)
    features = features_of(target, folder)
    random.Random(dist.get_rank()).shuffle(examples)
    for _ in range(2):
        found = {e.name: features.seen(collate([e])) for e in examples}
    return [float(found[name].features.double().sum()) for name in sorted(found)], counts(features)


def test_processes_that_fill_one_folder_at_once(tmp_path: Path) -> None:
    answers = run_ranks(3, _filled, tmp_path)
    assert answers[0][0] == answers[1][0] == answers[2][0]
    assert len(entries(tmp_path)) == 9
    assert all(read >= 9 and read + computed == 18 for _, (read, computed) in answers)
    assert sum(computed for _, (_, computed) in answers) >= 9
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path not in entries(tmp_path)]


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_the_bound(processes: int, tmp_path: Path) -> None:
    """With what others left there before; full, the folder stays as it is."""
    entry = Seen(torch.zeros(10, 30), torch.zeros(10, 10))
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "old.safetensors").write_bytes(bytes(30_000))
    limit = 130_000
    shelves = [FeatureFolder(tmp_path, "target", limit) for _ in range(processes)]
    for i in range(100):
        for j, shelf in enumerate(shelves):
            shelf.add(f"{i:03d}{j}", entry)
    size = max(path.stat().st_size for path in entries(tmp_path / "target"))
    spare = (processes - 1) * size
    assert limit - size < shelves[0].held() <= limit + spare
    assert shelves[0].held() == size_of(entries(tmp_path))
    held = entries(tmp_path)
    shelves[-1].add("more", entry)
    FeatureFolder(tmp_path, "target", limit).add("more", entry)
    assert entries(tmp_path) == held


def test_a_full_disk_is_said_once_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, batch = tiny_target("llama", torch.float32), collate(some_examples())
    whole = features_of(target, tmp_path / "a").seen(batch)
    features = features_of(target, tmp_path / "b")
    with files_of_at_most(2000):
        assert equal(features.seen(batch), whole)
        assert equal(features.seen(batch), whole)
    assert equal(features.seen(batch), whole)
    assert counts(features) == (2, 13), "no further attempt"
    assert (
        capsys.readouterr().err
        == f"features: rank 0: cannot write in {tmp_path / 'b'} (File too large): no more is kept\n"
    )
    assert [path for path in (tmp_path / "b").rglob("*") if path.is_file()] == entries(tmp_path / "b")


def test_mistakes_are_one_message(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    chats(tmp_path / "chats.jsonl")
    for folder in (tmp_path / "chats.jsonl" / "below", Path("/proc")):  # a file, and what takes no files
        code, _, err = run(tmp_path, 2, "--features", "cached", "--features_dir", str(folder))
        assert (code, "Traceback" in err) == (2, False)
        assert f"features_dir: cannot write in {folder} (" in err
    assert not (tmp_path / "results.jsonl").exists()
    given = {"target_dir": "a", "data_path": "b"}
    with pytest.raises(ConfigError, match=r"features: cached: .* ranks that share it \(shard_target\)"):
        check(EagleConfig.of(**given, features="cached", shard_target=True))
    with pytest.raises(ConfigError, match="features_gb: got 0"):
        EagleConfig.of(features_gb=0)


# ---- whole trainings --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two passes over the conversations, in folders that hold one thing or another when they begin."""
    folder = tmp_path_factory.mktemp("features")
    save_target(folder / "target")
    chats(folder / "chats.jsonl")

    def training(name: str, ranks: int = 2, **settings: Any) -> Training:
        fixed = {"run_name": name, "max_steps": STEPS, "comm_compress": "identity"}
        more = [word for k, v in (fixed | settings).items() for word in (f"--{k}", str(v))]
        return Training([*words(folder, *more), "--output_dir", str(folder / name)], ranks=ranks, draft=True)

    def cached(where: str, **more: Any) -> dict[str, Any]:
        return {"features": "cached", "features_dir": folder / "kept" / where, **more}

    middle = folder / "cold" / "runs" / "cold" / "checkpoints" / f"step-{STOP:08d}"
    ended = train_all(
        [
            training("online"),
            training("cold", **cached("a"), save_steps=STOP),
            training("full", **cached("b", features_gb=1e-9)),
            training("some", **cached("c", features_gb=1.5e-4)),
            training("by_one_rank", features="cached", batch_size=6, ranks=1),
            training("after_one_rank", **cached("../by_one_rank/features")),
            training("resumed", **cached("c", features_gb=1.5e-4), resume=middle),
            training("resumed_online", resume=middle),
        ]
    )
    assert ended[:-1] == [None] * 7
    assert ended[-1] is not None
    assert "features: was 'cached', is 'online'" in ended[-1]
    return folder


def row(folder: Path, name: str) -> dict[str, Any]:
    (found,) = [row for row in results.load(folder / "results.jsonl") if row["run_name"] == name]
    return found


def weights(folder: Path, name: str) -> dict[str, Any]:
    return dict(load_draft(folder / name / "runs" / name / "draft").state_dict())


@pytest.mark.parametrize("name", ["full", "some", "after_one_rank", "resumed"])
def test_a_training_is_the_same_whatever_was_kept(trained: Path, name: str) -> None:
    assert same(weights(trained, name), weights(trained, "cold"))
    one, other = row(trained, name), row(trained, "cold")
    for field in ("train_loss", "train_loss_by_position", "tokens_seen", "data_digest", "config_hash"):
        assert one[field] == other[field], field
    assert problems(one) == []


def test_a_row_says_what_was_read(trained: Path) -> None:
    """24 conversations, each of twelve twice; a resumed run counts its own half."""
    found = {n: row(trained, n) for n in ("online", "cold", "full", "after_one_rank", "some", "resumed")}
    said = {name: (one["features_read"], one["features_computed"]) for name, one in found.items()}
    assert said["online"] == (None, None)
    assert (said["cold"], said["after_one_rank"], said["full"]) == ((12, 12), (24, 0), (0, 24))
    assert (sum(said["some"]), sum(said["resumed"])) == (24, 12)
    assert 0 < said["some"][0] < 12
    assert found["cold"]["features_gb"] == size_of(entries(trained / "kept" / "a")) / 1e9
    assert 0 == found["full"]["features_gb"] < found["some"]["features_gb"] <= 1.5e-4
    assert not (trained / "online" / "features").exists()


def test_online_training_is_the_same_to_rounding(trained: Path) -> None:
    """And counts as another setting."""
    online, cached = row(trained, "online"), row(trained, "cold")
    assert online["train_loss"] == pytest.approx(cached["train_loss"], rel=1e-4)
    assert online["data_digest"] == cached["data_digest"]
    assert online["config_hash"] != cached["config_hash"]


def test_a_rank_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    """Nodes have disks of their own. Here each rank keeps what it was dealt."""
    save_target(tmp_path / "target")
    chats(tmp_path / "chats.jsonl")
    flags = ["--max_steps", "2", "--comm_compress", "identity", "--features", "cached", "--features_dir"]
    given = [words(tmp_path, *flags, str(tmp_path / f"of_rank_{rank}")) for rank in range(2)]
    code, _, err = run_program(_main, given, torchrun_environment(2))
    assert code == 0, err
    assert [len(entries(tmp_path / f"of_rank_{rank}")) for rank in range(2)] == [6, 6]


def test_it_is_said_at_the_end(trained: Path) -> None:
    found = row(trained, "cold")
    said = f"features     12 conversations read from disk, 12 computed; {found['features_gb']:.3g} GB there"
    assert said in summary(found, {}, None).splitlines()
    assert "read from disk" not in summary(row(trained, "online"), {}, None)
