"""`fsdp-lab train`: which ranks it starts, and what it refuses before it does."""

from __future__ import annotations

import pytest

from fsdp_lab import launch
from fsdp_lab.commands.train import main


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that torchrun would have been given."""
    lines: list[list[str]] = []

    def note(argv: list[str]) -> int:
        lines.append(argv)
        return 7

    monkeypatch.setattr(launch, "main", note)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    return lines


def test_two_ranks_without_a_gpu_and_one_for_each_gpu(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--max_steps", "3", "--comm-compress=bf16"]
    assert main(flags) == 7
    assert started[0] == [
        "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", "-m", "--", "fsdp_lab.train", *flags,
    ]  # fmt: skip
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    main([])
    main(["--nproc-per-node", "3"])
    main(["--virtual_ranks", "8"])
    assert [line[2] for line in started[1:]] == ["--nproc-per-node=4", "--nproc-per-node=3", "--nproc-per-node=1"]


def test_several_machines_meet(started: list[list[str]]) -> None:
    main(["--nnodes", "2", "--node_rank", "1", "--master_addr", "first", "--nproc_per_node", "1"])
    assert started[0][:4] == ["--nnodes=2", "--node-rank=1", "--master-addr=first", "--master-port=29500"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--nproc_per_node 0", "--nproc_per_node: got '0'"),
        ("--node_rank 1", "--node_rank, --master_addr, --master_port: for several machines"),
        ("--nnodes 2", "--nnodes 2: wants --master_addr"),
        ("--nnodes 0", "--nnodes: got '0'"),
        ("--nnodes 2 --node_rank 2 --master_addr a", "a --node_rank from 0 to 1"),
        ("--nnodes 2 --node_rank 0 --master_addr a --virtual_ranks 4", "leave one out"),
        ("--rank 2 --world 2 --master a", "rank: got 2, wants 0 to 1"),
        ("--rank 0 --world 2", "no master address"),
        ("--rank 0 --world 2 --master a:b", "--master: got 'a:b', wants HOST:PORT"),
        ("--rank 0 --world 2 --master a --nnodes 2", "--nnodes: torchrun's"),
        ("--rank 0 --world 2 --master a --virtual_ranks 4", "--world, --virtual_ranks"),
        ("--rank 0 --world 2 --master a --master_port 1", "say where the ranks meet once"),
        ("--max_step 3", "did you mean --max_steps?"),
        ("--comm_compress topkk", "did you mean 'topk'?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    words: str, complaint: str, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(words.split())
    assert ending.value.code == 2
    assert complaint in capsys.readouterr().err
    assert not started


def test_help_has_the_trainers_flags_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["--help"])
    assert ending.value.code == 0
    text = capsys.readouterr().out
    assert "--nproc_per_node" in text
    assert "--comm_compress" in text


def test_a_rank_by_hand_becomes_the_trainer(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[list[str], dict[str, str]]] = []

    def become(program: str, words: list[str], environment: dict[str, str]) -> None:
        became.append((words, environment))
        raise SystemExit(0)

    monkeypatch.setattr("os.execve", become)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "5")
    flags = ["--max_steps", "3"]
    by_flags = ["--rank", "1", "--world", "2", "--master", "10.0.0.1:2345"]
    with pytest.raises(SystemExit):
        main([*by_flags, *flags])
    monkeypatch.delenv("LOCAL_RANK")
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2345"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(flags)
    for words, environment in became:
        assert words[1:] == ["-m", "fsdp_lab.train", *flags]
        assert [environment[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")] == [
            "1", "2", "10.0.0.1", "2345",
        ]  # fmt: skip
        assert "LOCAL_RANK" not in environment
    main(["--nproc_per_node", "2", *flags])
    assert len(started) == 1, "ranks on this machine are torchrun's, whatever the environment names"
