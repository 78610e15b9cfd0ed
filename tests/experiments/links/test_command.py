"""The command behind ``python -m experiments.links``: every rank has its place, and mistakes are one message."""

import json
import sys
from pathlib import Path

import pytest

from experiments.links.command import environment_of, main
from fsdp_lab.ranks.environment import rank_environment


@pytest.mark.netns
def test_command_line_gives_every_rank_its_place_and_reports_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME"
    script = f"echo {names} > {tmp_path}/$RANK"
    report = tmp_path / "bytes.json"
    code = main(["--rate", "1gbit", "--json", str(report), "--", "sh", "-c", script])
    assert code == 0
    assert (tmp_path / "1").read_text().split() == ["1", "1", "2", "2", "10.77.0.1", "29500", "eth0"]
    record = json.loads(report.read_text())
    assert (record["exit_code"], record["rate"], record["per_node"]) == (0, "1gbit", 1)
    assert [node["ranks"] for node in record["nodes"]] == [[0], [1]]
    assert record["rate_measured"] > 0
    assert all(node["tx_bytes"] < 10_000 for node in record["nodes"])  # the measurement is not the command's
    assert len(capsys.readouterr().out.splitlines()) == 4  # the link, and a table


def test_our_trainers_have_the_environment_that_our_launcher_gives_them() -> None:
    """Allocator and threads: behind a link steps would take a tenth longer by another one's memory alone."""
    assert environment_of([sys.executable, "-m", "fsdp_lab.train", "--max_steps", "1"], 2) == rank_environment(2)
    assert environment_of([sys.executable, "program.py"], 2) == {}


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--rate", "fast", "--", "true"], "rate: got 'fast'"),
        (["--rate", "0mbit", "--", "true"], "rate: got '0mbit'"),
        (["--delay", "5", "--", "true"], "delay: got '5'"),
        (["--rate", "500gbit", "--", "true"], "rate: got '500gbit'"),
        (["--ranks", "0", "--", "true"], "--ranks: got '0'"),
        (["--ranks", "3", "--per_node", "2", "--", "true"], "per_node: got 2"),
        (["--rate", "1gbit"], "no command"),
        (["--json", "/no/such/folder/x.json", "--", "true"], "--json"),
        (["--", "--comm_dtype", "fp8"], "--comm_dtype"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(
    argv: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert word in capsys.readouterr().err
