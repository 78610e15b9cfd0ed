"""Ranks started by hand: who they are, how they meet, what is refused, and that the run is the one under torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from fsdp_lab.ranks.meeting import roll_call
from fsdp_lab.ranks.meeting.by_hand import Place, environment_of, is_by_hand, place_of, split_address
from fsdp_lab.ranks.meeting.roll_call import Met, meet
from fsdp_lab.settings.reading.fields import ConfigError
from tests.distributed import free_port, run_program, torchrun_environment
from tests.fsdp_lab.test_train import Lab, lab, train_as_program

__all__ = ["lab"]  # pytest finds the fixture here

FOUR = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "pi0", "MASTER_PORT": "2345"}


def test_flags_and_variables_say_the_same() -> None:
    place = Place(1, 4, "pi0", 2345)
    assert place_of(FOUR) == place_of({}, rank=1, world=4, master_addr="pi0", master_port="2345") == place
    assert place_of(FOUR, rank=1) == place, "said twice, and alike"
    assert place_of({}, rank=0, world=1) == Place(0, 1)
    inherited = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "HOME": "/root"}
    environment = environment_of(place, inherited)
    assert environment == {"HOME": "/root", **FOUR}
    assert is_by_hand(environment)
    assert not is_by_hand({**environment, "LOCAL_RANK": "0"}), "that is a launcher's"


@pytest.mark.parametrize(
    ("environment", "flags", "complaint"),
    [
        (FOUR, {"rank": 2}, "rank: --rank is 2, RANK in the environment is 1; say one"),
        (FOUR, {"world": 3}, "world: --world is 3, WORLD_SIZE in the environment is 4; say one"),
        ({}, {"rank": 4, "world": 4, "master_addr": "a"}, "rank: got 4, wants 0 to 3"),
        ({}, {"rank": 0, "world": 2}, "no master address: give --master HOST:PORT"),
        ({}, {"world": 2, "master_addr": "a"}, "rank: not given; say it with --rank or RANK"),
        ({**FOUR, "RANK": "one"}, {}, "rank: got 'one', wants a whole number, at least 0"),
        ({**FOUR, "WORLD_SIZE": "0"}, {}, "world: got '0', wants a whole number, at least 1"),
        ({**FOUR, "MASTER_PORT": "99999"}, {}, "master_port: got 99999, wants 1 to 65535"),
    ],
)
def test_what_contradicts_or_is_missing_is_named(
    environment: Mapping[str, str], flags: Mapping[str, str | int], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        place_of(environment, **flags)
    (said,) = refused.value.complaints
    assert said.startswith(complaint)


def test_addresses() -> None:
    assert split_address("10.0.0.1:29500") == ("10.0.0.1", "29500")
    assert split_address("pi-0.local") == ("pi-0.local", None)
    assert split_address("[fe80::1]:1") == ("fe80::1", "1")
    for text in ("", "a:b", "fe80::1:29500", "a b:1", ":29500"):
        with pytest.raises(ValueError, match="--master: got"):
            split_address(text)


# ---- meeting ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, os.environ.get(name, "lo"))
    monkeypatch.setattr(roll_call, "_READING_S", 0.5)


def together(*places: Place, seconds: float = 20) -> list[Met | str]:
    """What each of the ranks, started at the same time, gets: the meeting, or the complaint."""

    def one(place: Place) -> Met | str:
        try:
            return meet(place, timedelta(seconds=seconds))
        except ConfigError as error:
            (complaint,) = error.complaints
            return complaint

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, places))


@pytest.mark.usefixtures("quickly")
def test_all_meet_and_know_who_is_on_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    met = together(*(Place(rank, 3, "127.0.0.1", port) for rank in (2, 0, 1)))
    assert [(m.local_rank, m.local_world) for m in met if isinstance(m, Met)] == [(2, 3), (0, 3), (1, 3)]
    keys = iter(["a", "b", "a"])
    monkeypatch.setattr(roll_call, "host_key", lambda: next(keys))
    port = free_port()
    met = together(*(Place(rank, 3, "127.0.0.1", port) for rank in (0, 1, 2)))
    assert sorted((m.local_rank, m.local_world) for m in met if isinstance(m, Met)) == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.usefixtures("quickly")
def test_the_second_of_two_with_one_number_is_refused_and_the_missing_one_named() -> None:
    port = free_port()
    zero, *ones = together(*(Place(rank, 3, "127.0.0.1", port) for rank in (0, 1, 1)), seconds=2)
    assert str(zero).startswith(f"rank 2 did not come to 127.0.0.1:{port}; rank 0 listens on 127.0.0.1, where")
    assert sum("there is a rank 1 already, on" in str(one) for one in ones) == 1
    assert sum("rank 2 did not come" in str(one) or "it says why" in str(one) for one in ones) == 1


@pytest.mark.usefixtures("quickly")
def test_another_number_of_ranks_is_named_on_both() -> None:
    port = free_port()
    zero, one = together(Place(0, 2, "127.0.0.1", port), Place(1, 3, "127.0.0.1", port))
    assert "was told 2" in str(zero)
    assert "was told 3" in str(zero)
    assert "rank 0" in str(one)


@pytest.mark.usefixtures("quickly")
def test_a_master_that_cannot_be_is_refused() -> None:
    port = free_port()
    (alone,) = together(Place(1, 2, "127.0.0.1", port), seconds=0.5)
    assert "rank 0 cannot be reached there" in str(alone)
    (elsewhere,) = together(Place(0, 2, "192.0.2.1", port))
    assert "no address of this machine; rank 0 runs on the machine that the master address names" in str(elsewhere)
    (nowhere,) = together(Place(0, 2, "no.such.host.invalid", port))
    assert str(nowhere).startswith(f"master no.such.host.invalid:{port}: ")
    first, second = together(Place(0, 2, "127.0.0.1", port), Place(0, 2, "127.0.0.1", port), seconds=1)
    assert sorted("the port is taken" in str(one) for one in (first, second)) == [False, True]


# ---- a run -----------------------------------------------------------------------------------------------------------


def by_hand(world: int) -> list[dict[str, str]]:
    port = str(free_port())
    return [{"RANK": str(rank), "WORLD_SIZE": str(world), **_at(port)} for rank in range(world)]


def _at(port: str) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def test_it_is_the_run_that_torchrun_starts(lab: Lab) -> None:
    flags = lab.flags(comm_compress="int8", save_model="false")
    for environments in (torchrun_environment(2), by_hand(2)):
        code, _, err = run_program(train_as_program, [flags] * 2, environments)
        assert code == 0, err
    first, second = lab.rows()
    for key in ("val_loss", "train_loss", "bytes_compressed_total", "world_size"):
        assert first[key] == second[key], key


def test_a_killed_rank_is_named_and_differing_settings_are_refused(lab: Lab) -> None:
    environments = [{**told, "FSDP_LAB_FAULT": "kill:rank=1,step=3"} for told in by_hand(2)]
    code, _, err = run_program(train_as_program, [lab.flags(save_model="false")] * 2, environments)
    assert code == 1
    assert "rank 1 died (on " in err
    assert "Traceback" not in err
    (row,) = lab.rows()
    assert row["status"] == "failed"
    assert row["error"].startswith("rank 1 died")
    arguments = [lab.flags(batch_size=size) for size in (2, 4)]
    code, _, err = run_program(train_as_program, arguments, by_hand(2))
    assert code == 2
    assert "batch_size: rank 0 has 2, rank 1 has 4" in err
