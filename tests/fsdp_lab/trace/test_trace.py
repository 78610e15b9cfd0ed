"""The analyser on hand-made traces with known answers, and on files that are none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fsdp_lab.trace import Profile, rank_profile, read
from fsdp_lab.trace.__main__ import main
from fsdp_lab.trace.breakdown import StepTimes
from fsdp_lab.trace.table import short_table, table
from tests.fsdp_lab.trace.traces import GLOO, Event, event, kernel, launch, note, op, shapes, write

KINDS = ("compute", "communication", "compression", "exposed_communication", "exposed_compression", "idle", "total")


def microseconds(step: StepTimes, phase: str) -> dict[str, int]:
    times = step.whole if phase == "step" else step.phases[phase]
    return {name: round(getattr(times, name) * 1e3) for name in KINDS}


def expect(**known: int) -> dict[str, int]:
    return dict.fromkeys(KINDS, 0) | known


def cpu_step(at: float = 0.0, mm: float = 300.0) -> list[Event]:
    """One step of 1000 us (and as much longer as ``mm`` is longer than 300); the answers are in the test."""
    later = at + mm - 300
    forward = [
        note("fsdp_lab::forward", at, later + 400),
        op("aten::linear", at, at + mm),
        op("aten::mm", at + 100, at + 150),
        note("FSDP::pre_forward (h.0)", later + 300, later + 400),
        op("c10d::_allgather_base_", later + 310, later + 320, **shapes([20], [10], [])),
        note("gloo:all_gather", later + 315, later + 380, GLOO, **shapes([10])),
        op("aten::copy_", later + 390, later + 400),
    ]
    backward = [
        note("fsdp_lab::backward", later + 400, later + 900),
        op("autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward", later + 400, later + 900),
        note("FSDP::post_backward_reduce (h.0)", later + 480, later + 820),
        op("fsdp::chunk_cat", later + 490, later + 500),
        note("comm_compress::reduce_scatter (h.0)", later + 500, later + 800),
        note("comm_compress::encode", later + 510, later + 600),
        op("aten::abs", later + 520, later + 590),
        note("comm_compress::wire", later + 600, later + 650),
        note("gloo:recv", later + 605, later + 699),
        op("c10d::send", later + 606, later + 610),
        note("comm_compress::wire", later + 660, later + 700),
        note("comm_compress::decode", later + 700, later + 790),
        note("comm_compress::sent (reduce_scatter of h.0: 4000 B raw, 1000 B sent)", later + 795, later + 796),
        op("c10d::_reduce_scatter_base_", later + 840, later + 845, **shapes([10], [20], [])),
        note("gloo:all_reduce", later + 850, later + 930, GLOO, **shapes([20], dtype="c10::BFloat16")),
        event("aten::copy_", later + 855, later + 860, "cpu_op", GLOO),
    ]
    optimizer = [
        note("fsdp_lab::optimizer", later + 900, later + 990),
        op("_c10d_functional::all_reduce", later + 900, later + 910),
        op("c10d::allreduce_", later + 902, later + 908, **shapes([[3]], [])),
        note("gloo:all_reduce", later + 905, later + 945, GLOO, **shapes([3], dtype="double")),
        op("aten::_fused_adamw_", later + 940, later + 990),
    ]
    return [note("fsdp_lab::step", at, later + 1000), *forward, *backward, *optimizer]


def test_a_cpu_step(tmp_path: Path) -> None:
    (step,) = rank_profile(read(write(tmp_path, cpu_step()))).steps
    assert microseconds(step, "forward") == expect(
        compute=300 + 10,  # nested operators once; FSDP2's packing
        communication=70,  # the call, and the transfer from 315 to 380
        exposed_communication=70,
        idle=20,  # the hook before the call and after the transfer
        total=400,
    )
    assert microseconds(step, "backward") == expect(
        compute=80 + 10 + 80 - 5,  # the node around the hook, packing inside it, the node again but for the call
        communication=90 + 5 + 50,  # wire, the call, the transfer from 850
        compression=100 + 10 + 100,  # all of the collective but the wire; the operator in it does not count twice
        exposed_communication=95,
        exposed_compression=210,
        idle=10 + 20 + 5 - 5,
        total=500,
    )
    assert microseconds(step, "optimizer") == expect(compute=50, communication=45, exposed_communication=40, total=90)
    assert microseconds(step, "other") == expect(idle=10, total=10)
    assert microseconds(step, "step") == {
        name: sum(microseconds(step, phase)[name] for phase in step.phases) for name in KINDS
    }


def test_what_collectives_moved(tmp_path: Path) -> None:
    (step,) = rank_profile(read(write(tmp_path, cpu_step()))).steps
    found = {
        op: (t.count, t.raw_bytes, t.sent_bytes, round(t.milliseconds * 1e3)) for op, t in step.collectives.items()
    }
    assert found == {
        # ours, and stock gloo's: half of 20 elements of 2 bytes, and twice that because it is an all-reduce
        "reduce_scatter": (2, 4000 + 20, 1000 + 40, 90 + 80),
        "all_gather": (1, 40, 40, 65),
        "all_reduce": (1, 24, 24, 40),  # 2 ranks, 3 doubles on a ring
    }
    reduce_scatter = step.collectives["reduce_scatter"]
    assert reduce_scatter.raw_gbps == pytest.approx(4020 / 170e-6 / 1e9)
    assert reduce_scatter.sent_gbps == pytest.approx(1040 / 170e-6 / 1e9)


def test_each_collectives_share_of_the_step_and_of_communication(tmp_path: Path) -> None:
    """In a step of 1 ms: 170, 65 and 40 us. Those of communication say nothing that runs beside another."""
    profile = Profile([rank_profile(read(write(tmp_path, cpu_step())))])
    step, whole = profile.mean, profile.mean.whole
    milliseconds = {"reduce_scatter": 0.17, "all_gather": 0.065, "all_reduce": 0.04}
    assert {op: step.share_of_step(op) for op in step.collectives} == {
        op: pytest.approx(ms / whole.total) for op, ms in milliseconds.items()
    }
    assert {op: step.share_of_communication(op) for op in step.collectives} == {
        op: pytest.approx(ms / whole.communication) for op, ms in milliseconds.items()
    }
    said = table(profile)
    heads = next(line for line in said.splitlines() if line.startswith("collectives"))
    assert heads.split()[4:10] == ["ms", "of", "step", "of", "comm.", "exposed"]
    reduce_scatter = next(line for line in said.splitlines() if line.startswith("reduce_scatter"))
    shares = f"{100 * 0.17 / whole.total:.1f} % {100 * 0.17 / whole.communication:.1f} %"
    assert shares in " ".join(reduce_scatter.split())
    assert short_table(profile).count("of comm.") == 1
    written = profile.to_json()["mean"]["collectives"]["all_gather"]
    assert written["share_of_step"] == pytest.approx(0.065 / whole.total)


def test_a_prefetched_message_counts_while_it_is_waited_for(tmp_path: Path) -> None:
    """When it arrived nobody knows: what compute hides lies between nothing and all of it."""
    events = [
        note("fsdp_lab::step", 0, 100),
        note("comm_compress::all_gather (h.1)", 0, 10),
        note("comm_compress::wire", 5, 10),
        note("gloo:recv", 6, 80),
        op("aten::mm", 10, 70),
        note("comm_compress::all_gather (h.1)", 70, 90),
        note("comm_compress::wire", 70, 80),
        note("comm_compress::sent (all_gather of h.1: 80 B raw, 20 B sent)", 85, 86),
    ]
    profile = Profile([rank_profile(read(write(tmp_path, events)))])
    whole = profile.mean.whole
    assert whole.communication == pytest.approx(0.015)
    assert profile.overlap_ratio == 0
    assert whole.communication_at_most == pytest.approx(0.075)
    assert profile.overlap_ratio_at_most == pytest.approx(60 / 75)
    gather = profile.mean.collectives["all_gather"]
    assert (gather.count, gather.raw_bytes, gather.milliseconds) == (1, 80, pytest.approx(0.015))


@pytest.mark.parametrize("operation", ["optimizer", "outer"])
def test_what_optimizers_and_local_steps_exchange_is_communication(tmp_path: Path, operation: str) -> None:
    events = [
        note("fsdp_lab::step", 0, 100),
        op("aten::mm", 0, 40),
        note(f"comm_compress::{operation} (h.0)", 40, 90),
        note("comm_compress::encode", 40, 50),
        op("aten::abs", 42, 48),
        note("comm_compress::wire", 50, 80),
        note("comm_compress::decode", 80, 90),
        note(f"comm_compress::sent ({operation} of h.0: 80 B raw, 20 B sent)", 90, 90),
    ]
    profile = Profile([rank_profile(read(write(tmp_path, events)))])
    whole = profile.mean.whole
    assert (whole.compute, whole.communication, whole.compression) == pytest.approx((0.04, 0.03, 0.02))
    sent = profile.mean.collectives[operation]
    assert (sent.count, sent.raw_bytes, sent.sent_bytes, sent.milliseconds) == (1, 80, 20, pytest.approx(0.03))


def test_ranks_of_uneven_length(tmp_path: Path) -> None:
    """Each rank counts once, however many steps it has; the slowest is the one that works longest."""
    write(tmp_path, cpu_step() + cpu_step(2000), rank=0)
    write(tmp_path, cpu_step(mm=500), rank=1, gz=True)
    profile = Profile([rank_profile(read(path)) for path in sorted(tmp_path.iterdir())])
    assert [len(rank.steps) for rank in profile.ranks] == [2, 1]
    assert profile.mean.whole.total == pytest.approx((1.0 + 1.2) / 2)
    assert profile.mean.phases["forward"].compute == pytest.approx((0.31 + 0.51) / 2)
    assert profile.slowest.rank == 1
    assert profile.mean.collectives["all_gather"].sent_bytes == 40
    assert profile.overlap_ratio == pytest.approx(55 / (70 + 145 + 45))


def cuda_step() -> list[Event]:
    """Launches on the host, all over by 60 us, and what they did on two streams until 500."""
    host = [
        note("fsdp_lab::step", 0, 100),
        note("fsdp_lab::forward", 0, 20),
        op("aten::mm", 2, 8),
        launch(5, 1),
        note("fsdp_lab::backward", 20, 50),
        event("aten::mm_backward", 22, 26, "cpu_op", 9),  # autograd's own thread
        launch(23, 2, 9),
        event("comm_compress::reduce_scatter (h.0)", 26, 40, "user_annotation", 9),
        event("comm_compress::encode", 27, 30, "user_annotation", 9),
        launch(28, 3, 9),
        event("comm_compress::wire", 30, 34, "user_annotation", 9),
        launch(31, 4, 9),
        launch(33, 5, 9),
        event("comm_compress::decode", 34, 38, "user_annotation", 9),
        launch(35, 6, 9),
        event("comm_compress::sent (reduce_scatter of h.0: 400 B raw, 100 B sent)", 39, 39, "user_annotation", 9),
        event("c10d::_allgather_base_", 42, 44, "cpu_op", 9),
        launch(43, 7, 9),
        note("fsdp_lab::optimizer", 50, 90),
        op("aten::_fused_adamw_", 52, 60, External_id=77),
    ]
    device = [
        kernel("gemm", 10, 110, 1),
        kernel("gemm", 110, 260, 2),
        kernel("encode_blocks", 150, 200, 3, stream=2),  # under compute
        event("Memcpy DtoD", 200, 210, "gpu_memcpy", 2, correlation=4, stream=2),  # to the wire
        kernel("ncclDevKernel_SendRecv", 210, 300, 5, stream=2),  # 50 us under compute
        kernel("decode_blocks", 300, 340, 6, stream=2),
        kernel("ncclDevKernel_AllGather_RING_LL", 340, 400, 7, 3, In_msg_nelems=50, dtype="BFloat16", Group_size=2),
        event("fused_adam", 400, 500, "kernel", 1, stream=1, External_id=77),  # no correlation id
    ]
    return host + device


def test_a_cuda_step(tmp_path: Path) -> None:
    found = rank_profile(read(write(tmp_path, cuda_step(), backend="nccl")))
    (step,) = found.steps
    assert found.device == "cuda"
    assert microseconds(step, "forward") == expect(compute=100, idle=10, total=110)
    assert microseconds(step, "backward") == expect(
        compute=150,
        communication=10 + 90 + 60,
        compression=50 + 40,
        exposed_communication=40 + 60,
        exposed_compression=40,
        total=290,
    )
    assert microseconds(step, "optimizer") == expect(compute=100, total=100)
    assert microseconds(step, "step")["total"] == 500
    moved = {
        op: (t.count, t.raw_bytes, t.sent_bytes, round(t.milliseconds * 1e3)) for op, t in step.collectives.items()
    }
    assert moved == {"reduce_scatter": (1, 400, 100, 100), "all_gather": (1, 100, 100, 60)}


def test_a_step_of_the_device_begins_when_the_last_one_is_done(tmp_path: Path) -> None:
    events = [
        note("fsdp_lab::step", 0, 10),
        launch(1, 1),
        note("fsdp_lab::step", 10, 20),
        launch(11, 2),
        kernel("a", 5, 35, 1),
        kernel("b", 40, 60, 2),
    ]
    first, second = rank_profile(read(write(tmp_path, events))).steps
    assert (round(first.whole.total * 1e3), round(first.whole.compute * 1e3)) == (35, 30)
    assert (round(second.whole.total * 1e3), round(second.whole.compute * 1e3)) == (25, 20)


def test_the_profilers_own_steps_will_do(tmp_path: Path) -> None:
    events = [note("ProfilerStep#3", 0, 100), op("aten::mm", 10, 60)]
    (step,) = rank_profile(read(write(tmp_path, events))).steps
    assert microseconds(step, "other") == expect(compute=50, idle=50, total=100)


def test_the_command_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        write(tmp_path / "profiler", cpu_step(mm=300 + 100 * rank), rank)
    out, picture = tmp_path / "profile.json", tmp_path / "timeline.png"
    assert main([str(tmp_path), "--json", str(out), "--timeline", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "1 step on 2 ranks (cpu, gloo)" in said
    assert "rank 1 is the slowest" in said
    numbers = json.loads(out.read_text())
    assert numbers["mean"]["phases"]["forward"]["compute"] == pytest.approx(0.36)
    assert [rank["rank"] for rank in numbers["ranks"]] == [0, 1]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_rank_that_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, cpu_step())
    assert main([str(tmp_path)]) == 0
    assert "1 of 2 ranks" in capsys.readouterr().out


def broken(folder: Path) -> dict[str, str]:
    """What each case's message must name."""
    whole = write(folder / "two", cpu_step())
    write(folder / "two", cpu_step()).rename(whole.with_name("rank0.9.pt.trace.json"))
    write(folder / "two", cpu_step())
    text = whole.read_bytes()
    for name, content in {
        "half/rank0.1.pt.trace.json": text[: len(text) // 2],
        "zipped/rank0.1.pt.trace.json.gz": gzip.compress(text)[:-20],
        "other/rank0.1.pt.trace.json": b'{"hello": 1}',
        "list/rank0.1.pt.trace.json": b"[1]",
        "empty/rank0.1.pt.trace.json": b"",
        "nothing/readme.txt": b"",
    }.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)
    write(folder / "stepless", [op("aten::mm", 0, 1)])
    return {
        "two": "both of rank 0",
        "half": "not a whole trace",
        "zipped": "not a whole trace",
        "other": "no traceEvents",
        "list": "no traceEvents",
        "empty": "not a whole trace",
        "nothing": "no traces",
        "stepless": "where a step begins",
        "missing": "wants a folder; there is none",
        "nothing/readme.txt": "wants a folder; that is a file",
    }


def test_what_cannot_be_read_is_named_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in broken(tmp_path).items():
        with pytest.raises(SystemExit) as stop:
            main([str(tmp_path / name)])
        said = capsys.readouterr().err
        assert stop.value.code == 2
        assert words in said, name
        assert str(tmp_path / name) in said, name
        assert len(said.splitlines()) == 1, name


@pytest.mark.parametrize(
    "flags", [["--json", "{}/no/x.json"], ["--timeline", "{}/no/x.png"], ["--timeline", "{}/x.foo"]]
)
def test_what_cannot_be_written_is_named(tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, cpu_step())
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path), *(flag.format(tmp_path) for flag in flags)])
    assert stop.value.code == 2
    assert f"{flags[0]}: got '{tmp_path}" in capsys.readouterr().err
