"""The trainer as a user starts it: real ranks, tiny settings; under torchrun where starting and ending matter.

One run begins with `python -m`, as the user's does; `Lab.fork` and `Lab.run` save the others their imports.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from fsdp_lab import chat, results, validate
from fsdp_lab.data import WIKI_LEADS
from fsdp_lab.ranks.faults import VARIABLE
from fsdp_lab.ranks.processes import forked_ranks
from fsdp_lab.results.validation import problems
from fsdp_lab.run.entry import run_as_program
from tests.distributed import preload, run_program, torchrun_environment
from tests.forked_launch import Launched
from tests.fsdp_lab.training_ranks import make_nano_tiny

ROOT = Path(__file__).resolve().parents[2]
Started = TypeVar("Started", "subprocess.Popen[str]", Launched)
preload("fsdp_lab.train")
preload("torch.utils.tensorboard")


def train_as_program() -> None:
    """What ``python -m fsdp_lab.train`` does."""
    from fsdp_lab.train import train

    tqdm.set_lock(RLock())  # its own is a semaphore, and ranks leave by os._exit
    run_as_program(train)


def train_tiny() -> None:
    """The same, with a gpt2-nano that costs next to nothing."""
    make_nano_tiny()
    train_as_program()


@cache
def _corpora() -> dict[str, str]:
    """Files of documents by name."""
    documents = json.loads(gzip.decompress(WIKI_LEADS.read_bytes()))
    return {"corpus.json": json.dumps(documents[:400]), "other.json": json.dumps(documents[400:500])}


class Lab:
    """A folder with a small corpus, and runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows_file = folder, folder / "results.jsonl"
        for name, text in _corpora().items():
            (folder / name).write_text(text)

    def mix(self) -> str:
        """A quarter of one corpus, three of another."""
        return json.dumps({str(self.folder / "corpus.json"): 1, str(self.folder / "other.json"): 3})

    def flags(self, **settings: Any) -> list[str]:
        """Of a small run; those that are None are left out. The first thousand of GPT-2's 50,257 ids: to make the whole
        tokenizer, its embedding and its logits would be half of the time that a run takes."""
        defaults: dict[str, Any] = {
            "data_path": self.folder / "corpus.json",
            "cache_dir": self.folder / "cache",
            "output_dir": self.folder / "out",
            "results_path": self.rows_file,
            "val_fraction": 0.005,
            "max_length": 16,
            "batch_size": 2,
            "max_steps": 12,
            "log_interval": 4,
            "threads": 1,
            "timeout_s": 60,
            "tensorboard": "false",
            "vocab_size": 1000,
        }
        if "data_mix" in settings:
            del defaults["data_path"]
        if "model_dir" in settings:  # which brings its own tokenizer
            del defaults["vocab_size"]
        given = {name: value for name, value in {**defaults, **settings}.items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]

    def start(self, ranks: int = 2, **settings: Any) -> subprocess.Popen[str]:
        """A run as a user starts it, under torchrun: 10 s of imports."""
        command = [sys.executable, "-m", "fsdp_lab.launch", "--standalone", "--local-addr=127.0.0.1"]
        command += [f"--nproc-per-node={ranks}", "-m", "--", "fsdp_lab.train", *self.flags(**settings)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=pipe, stderr=pipe, text=True)

    def fork(self, ranks: int = 2, fault: str = "", **settings: Any) -> Launched:
        """The same without the imports: launcher and ranks are forked, and gpt2-nano is tiny.

        ``fault``: what the fault injector is told.
        """
        words = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}", "-m", "--", "fsdp_lab.train"]
        words += self.flags(**settings)
        return Launched(words, ranks, {**_environment(), VARIABLE: fault}, self.folder, make_nano_tiny)

    def launch(self, ranks: int = 2, **settings: Any) -> tuple[int, str, str]:
        """A run under torchrun: its exit code, what it printed, what it complained of."""
        process = self.start(ranks, **settings)
        out, err = process.communicate(timeout=120)
        return int(process.returncode), out, err

    def run(self, ranks: int = 2, **settings: Any) -> tuple[int, str, str]:
        """The same on forked ranks, which start at once; gpt2-nano is tiny."""
        return run_program(train_tiny, [self.flags(**settings)] * ranks, torchrun_environment(ranks))

    def rows(self) -> list[dict[str, Any]]:
        return results.load(self.rows_file) if self.rows_file.exists() else []


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, str]:
    """One ordinary run with everything on, for several tests to look at; with all of GPT-2's ids."""
    lab = Lab(tmp_path_factory.mktemp("finished"))
    code, out, err = lab.launch(
        run_name="ordinary",
        vocab_size=None,
        comm_compress="topk",
        comm_config_json='{"ratio": 0.05, "indices": "int32"}',
        param_compress="int8",
        gradient_accumulation_steps=2,
        eval_steps=6,
        grad_error_every=4,
        target_ppl=1e6,
        ppl_at_s=1e-3,
        tensorboard="true",
        profile="true",
        profile_steps=2,
    )
    assert code == 0, err
    return lab, out


def test_a_run_leaves_a_valid_row(finished: tuple[Lab, str]) -> None:
    (row,) = finished[0].rows()
    assert problems(row) == []
    assert row["status"] == "ok"
    assert row["world_size"] == 2
    assert row["steps"] == 12
    assert row["tokens_seen"] == 12 * 2 * 2 * 2 * 16
    assert row["bytes_source"] == "counted"
    assert row["compression_ratio_reduce_scatter"] == pytest.approx(10, rel=0.01)  # 5 % of 32 bits, 64 bits each
    assert row["value_bytes"] + row["index_bytes"] + row["metadata_bytes"] == row["bytes_compressed_total"]
    assert row["feedback_bytes"] > 0
    assert row["val_ppl"] == pytest.approx(2.718281828 ** row["val_loss"], rel=1e-6)


def test_its_gradients_were_compared_but_not_where_they_were_profiled(finished: tuple[Lab, str]) -> None:
    (row,) = finished[0].rows()
    assert row["grad_samples"] == 2  # steps 8 and 12: 4 and 5 were profiled
    assert row["density"] == pytest.approx(0.05, rel=0.01)
    assert 0 < row["grad_cos_sim"] < 1
    assert row["grad_rel_error"] > 0
    assert row["residual_norm"] > 0
    assert row["steps_timed"] == 12 - row["warmup_steps_excluded"] - 4 - 2
    assert row["extra_collectives"] == row["extra_collectives_time_ms_total"] == 0
    assert 0 < row["effective_bw_compressed_gbps"] < row["effective_bw_raw_gbps"]
    assert row["mem_peak_alloc_gb"] == row["mem_peak_reserved_gb"] == row["peak_rss_gb"]


def test_its_goals_are_met_by_the_first_evaluation(finished: tuple[Lab, str]) -> None:
    lab, out = finished
    (row,) = lab.rows()
    assert (row["reached_target"], row["steps_to_target_ppl"]) == (True, 1), "the clock asked for one after step 1"
    assert 0 < row["time_to_target_ppl_s"] < row["train_time_s"]
    assert row["ppl_at_fixed_time"] > row["val_ppl"]
    assert "PPL 1e+06 reached after 1 step, " in out


def test_its_curve_has_every_line_of_the_log(finished: tuple[Lab, str]) -> None:
    lab, _ = finished
    (row,) = lab.rows()
    assert row["loss_curve"] == "out/runs/ordinary/curve.jsonl"
    lines = [json.loads(line) for line in (lab.folder / row["loss_curve"]).read_text().splitlines()]
    assert [line["step"] for line in lines if "train_loss" in line] == [4, 8, 12]
    assert [line["step"] for line in lines if "val_ppl" in line] == [1, 6, 12]
    assert [line["step"] for line in lines if "grad_rel_error" in line] == [8, 12]
    assert lines[-1]["val_ppl"] == pytest.approx(row["val_ppl"], rel=1e-6)
    assert lines[-1]["sent_bytes"] == row["bytes_compressed_total"]
    assert lines[-1]["tokens"] == row["tokens_seen"]
    assert lines[-1]["train_seconds"] == pytest.approx(row["train_time_s"], rel=1e-6)


def test_it_says_what_it_did_and_where_everything_is(finished: tuple[Lab, str]) -> None:
    lab, out = finished
    for word in ("comm_compress: topk", "validation PPL", "reduce_scatter (topk)", "all_gather (int8)", "10.00x"):
        assert word in out
    run = lab.folder / "out" / "runs" / "ordinary"
    assert (run / "config.yaml").is_file()
    logs = lab.folder / "out" / "logs" / "ordinary"
    assert sorted(path.name for path in logs.iterdir()) == ["profiler", "tensorboard"]
    assert len(list((logs / "tensorboard").glob("events.*"))) == 1
    assert len(list((logs / "profiler").glob("rank*.json"))) == 2
    assert f"TensorBoard  {logs / 'tensorboard'}" in out


def test_a_profiled_run_says_where_its_time_went(finished: tuple[Lab, str]) -> None:
    lab, out = finished
    (row,) = lab.rows()
    assert 0 <= row["overlap_ratio"] <= 1
    assert row["exposed_comm_ms_per_step"] > 0
    assert "profile: 2 steps on 2 ranks (cpu, gloo)" in out
    assert "exposed compression" in out
    (events,) = (lab.folder / "out" / "logs" / "ordinary" / "tensorboard").glob("events.*")
    for name in (b"memory/rss_gb", b"profile/compute_ms", b"profile/reduce_scatter_sent_bytes", b"profile/backward_ms"):
        assert name in events.read_bytes()


def test_its_events_have_each_direction_and_the_final_row(finished: tuple[Lab, str]) -> None:
    lab, _ = finished
    (row,) = lab.rows()
    events = EventAccumulator(str(lab.folder / "out" / "logs" / "ordinary" / "tensorboard")).Reload()
    for op in ("reduce_scatter", "all_gather"):
        lines = events.Scalars(f"{op}/sent_bytes")
        assert [line.step for line in lines] == [4, 8, 12]
        assert sum(4 * line.value for line in lines) == pytest.approx(row["bytes_compressed_by_op"][op], rel=1e-5)
        for part in ("encode", "wire", "decode"):
            assert all(line.value > 0 for line in events.Scalars(f"{op}/{part}_ms"))
    assert events.Scalars("comm/ratio")[-1].value == pytest.approx(row["compression_ratio"], rel=0.01)
    assert events.Scalars("row/val_ppl")[-1].value == pytest.approx(row["val_ppl"], rel=1e-6)


def test_its_model_has_a_card_with_its_numbers(finished: tuple[Lab, str]) -> None:
    lab, _ = finished
    (row,) = lab.rows()
    card = (lab.folder / "out" / "runs" / "ordinary" / "final_model" / "README.md").read_text()
    assert f"| validation perplexity | {row['val_ppl']:.2f} |" in card
    assert str(lab.folder) not in card


def test_bytes_are_said_from_when_all_are_known(lab: Lab) -> None:
    """Stock all-gathers are counted by a profile of steps 4 to 8; before that they are unknown, not nothing."""
    code, out, err = lab.run(comm_compress="int8", log_interval=2, save_model="false", tensorboard="true")
    assert code == 0, err
    said = {int(found[1]): line for line in out.splitlines() if (found := re.match(r"step +(\d+)/12  ", line))}
    assert {step: "sent_bytes_per_step" in line for step, line in said.items()} == {
        2: False, 4: False, 6: False, 8: False, 10: True, 12: True,
    }  # fmt: skip
    (row,) = lab.rows()
    (folder,) = (lab.folder / "out" / "logs").glob("*/tensorboard")
    events = EventAccumulator(str(folder)).Reload()
    values = [scalar.value for scalar in events.Scalars("comm/sent_bytes_per_step")]
    assert values == pytest.approx([row["bytes_compressed_total"] / 12] * 2, rel=1e-3)


def test_the_saved_model_has_the_runs_perplexity(finished: tuple[Lab, str]) -> None:
    lab, _ = finished
    model = lab.folder / "out" / "runs" / "ordinary" / "final_model"
    words = ["--model_dir", str(model), "--cache_dir", str(lab.folder / "c")]
    code, out, err = run_program(partial(validate.main, words), [words], [{}])
    assert code == 0, err
    (row,) = lab.rows()
    assert f"loss {row['val_loss']:.4f}" in out
    assert f"over {row['val_tokens']:,} tokens" in out


def chat_about(asked: str, words: list[str]) -> None:
    sys.stdin = io.StringIO(asked)
    sys.exit(chat.main(words))


def test_the_saved_model_continues_prompt_after_prompt(finished: tuple[Lab, str]) -> None:
    model = finished[0].folder / "out" / "runs" / "ordinary" / "final_model"
    words = ["--model_dir", str(model), "--max_new_tokens", "5", "--temperature", "0"]
    asked = "Hello world\nHello world\n"
    code, said, err = run_program(partial(chat_about, asked, words), [words], [{}])
    assert code == 0, err
    assert said.startswith("Hello world")
    assert len(said) > len(asked)
    assert said == 2 * said[: len(said) // 2], "the most likely tokens are the same every time"


def test_a_used_run_name_is_refused_and_nothing_is_lost(finished: tuple[Lab, str]) -> None:
    lab, _ = finished
    process = lab.fork(run_name="ordinary")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "run_name" in err
    assert "Traceback" not in out + err
    assert (lab.folder / "out" / "runs" / "ordinary" / "final_model" / "config.json").is_file()
    assert len(lab.rows()) == 1


def test_identity_is_none_and_runs_repeat_and_seeds_differ(lab: Lab) -> None:
    for method, sample, seed in (("none", 3, 1), ("identity", 0, 1), ("identity", 3, 1), ("identity", 0, 2)):
        settings = {"comm_compress": method, "param_compress": method, "grad_error_every": sample, "seed": seed}
        assert lab.run(save_model="false", **settings)[0] == 0
    stock, first, second, other = lab.rows()
    assert other["train_loss"] != first["train_loss"]
    assert [row["grad_samples"] for row in (stock, first, second)] == [0, 0, 4]
    assert (second["grad_rel_error"], second["grad_cos_sim"], second["density"]) == (0, 1, 1)
    assert stock["train_loss"] == first["train_loss"] == second["train_loss"]
    assert stock["val_loss"] == first["val_loss"] == second["val_loss"]
    assert first["bytes_compressed_by_op"] == second["bytes_compressed_by_op"]
    assert first["compression_ratio"] == 1
    assert stock["overlap_ratio"] is None, "nobody asked for a profile"
    # what the profiler saw of stock FSDP2 is what our own transport was asked to carry
    assert stock["bytes_raw_by_op"] == first["bytes_raw_by_op"]
    assert stock["bytes_compressed_by_op"]["reduce_scatter"] == 2 * first["bytes_raw_by_op"]["reduce_scatter"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_world_sizes(lab: Lab, ranks: int) -> None:
    settings = {"comm_config_json": '{"scale": "global"}', "target_ppl": 1.5, "curves_dir": lab.folder / "curves"}
    code, out, err = lab.run(ranks, comm_compress="int8", param_compress="bf16", save_model="false", **settings)
    assert code == 0, err
    (row,) = lab.rows()
    assert row["world_size"] == ranks
    assert (row["compression_ratio"] is None) == (ranks == 1)
    assert ("there is one rank" in out) == (ranks == 1)
    assert (row["reached_target"], row["time_to_target_ppl_s"]) == (False, None)
    assert "PPL 1.5 not reached" in out
    assert row["loss_curve"] == f"curves/{row['run_name']}.jsonl"
    assert (lab.folder / row["loss_curve"]).is_file()
    assert (row["extra_collectives"] or 0) == (0 if ranks == 1 else 12 * 3), "a scale for each unit and step"


def test_steps_that_are_not_finite_are_skipped_counted_and_in_the_end_fatal(lab: Lab) -> None:
    code, out, _ = lab.run(learning_rate=1e30, max_nonfinite_steps=3, warmup_steps=0, max_grad_norm=0)
    assert code == 1
    assert out.count("step skipped") == 3
    (row,) = lab.rows()
    assert row["status"] == "failed"
    assert "3 steps in a row" in row["error"]
    assert not (lab.folder / "out" / "runs" / row["run_name"] / "final_model").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"comm_compress": "topq"}, ["comm_compress", "did you mean 'topk'"]),
        ({"comm_compress": "topk", "comm_config_json": '{"ratio": 2}'}, ["ratio = 2", "at most 1"]),
        ({"param_compress": "topk"}, ["param_compress", "topk", "int8"]),
        ({"comm_compress": "delta"}, ["comm_compress", "delta", "parameters only"]),
        ({"model": "gpt5"}, ["model", "gpt5"]),
        ({"max_length": 1100, "val_fraction": 0.1}, ["max_length", "1024"]),
        ({"data_path": "/no/such/file.json"}, ["/no/such/file.json", "data_path"]),
        ({"cache_dir": "/dev/null/tokens"}, ["cache_dir", "/dev/null/tokens", "Not a directory"]),
        ({"model_dir": "/no/such/model"}, ["/no/such/model"]),
        ({"batch_size": 100_000}, ["batch_size", "tokens"]),
    ],
)
def test_a_users_mistake_is_one_message_and_leaves_nothing(
    lab: Lab, settings: dict[str, Any], words: list[str]
) -> None:
    code, out, err = lab.run(**settings)
    assert code == 2
    assert "Traceback" not in out + err
    message = [line for line in err.splitlines() if line.startswith("fsdp_lab.train:")]
    assert len(message) == 1
    for word in words:
        assert word in err
    assert lab.rows() == []
    assert not list((lab.folder / "out" / "runs").glob("*"))


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def start_endless(lab: Lab, **settings: Any) -> Launched:
    """A run that has begun to train and would not end by itself; forked."""
    return until_it_trains(lab, lab.fork(**ENDLESS, **settings))


ENDLESS = {"run_name": "endless", "max_steps": 100_000, "tensorboard": "true", "log_interval": 1}


def until_it_trains(lab: Lab, process: Started) -> Started:
    """An endless run once it has logged a step."""
    curve = lab.folder / "out" / "runs" / "endless" / "curve.jsonl"
    wait_until(lambda: (curve.exists() and curve.stat().st_size > 0) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def test_a_killed_rank_ends_the_run_and_is_named(lab: Lab) -> None:
    process = start_endless(lab)
    pid = forked_ranks(process.pid).get(0)  # the one that writes; another has to do it
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 0 was killed by SIGKILL" in err
    assert "fsdp_lab.train: rank 0 died; nothing was saved" in err
    assert "Traceback" not in err
    (row,) = lab.rows()
    assert row["status"] == "failed"
    assert "rank 0 died" in row["error"]
    lines = [json.loads(line) for line in (lab.folder / row["loss_curve"]).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))


def test_a_hung_rank_does_not_keep_the_run_from_its_row(lab: Lab) -> None:
    process = start_endless(lab, stop_grace_s=1)
    hung = forked_ranks(process.pid).get(1)
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(lab.rows()) == 1)
    os.kill(hung, signal.SIGKILL)  # torchrun itself would do that after 30 seconds
    _, err = process.communicate(timeout=60)
    (row,) = lab.rows()
    assert row["status"] == "preempted"
    assert row["error"] == "stopped by SIGTERM while waiting for the other ranks"
    assert "most recent call first" in err


def test_a_stop_signal_is_a_preempted_row(lab: Lab) -> None:
    process = start_endless(lab)
    process.send_signal(signal.SIGUSR2)  # (SIGTERM: tests/fsdp_lab/ranks/test_faults.py)
    process.communicate(timeout=60)
    assert process.returncode == 143
    (row,) = lab.rows()
    assert row["status"] == "preempted"
    assert "SIGUSR2" in row["error"]


def test_ranks_that_were_told_different_things_stop_at_once(lab: Lab) -> None:
    told = {"comm_compress": ("int8", "bf16"), "grad_error_every": (5, 6), "curves_dir": ("/x/0", "/x/1")}
    flags = [lab.flags(**{name: values[rank] for name, values in told.items()}) for rank in (0, 1)]
    code, _, said = run_program(train_tiny, flags, torchrun_environment(2))
    assert code == 2
    assert "comm_compress: rank 0 has 'int8', rank 1 has 'bf16'" in said
    assert "grad_error_every: rank 0 has 5, rank 1 has 6" in said, "they would wait for different collectives"
    assert "curves_dir" not in said, "each machine may have its own folders"
    assert lab.rows() == []


def test_a_mix_is_trained_on_and_its_row_says_what_came_of_the_weights(lab: Lab) -> None:
    flags = lab.flags(data_mix=lab.mix(), run_name="mixed", comm_compress="none", shuffle_rows=8, save_model="false")
    code, _, err = run_program(train_tiny, [flags] * 2, torchrun_environment(2))
    assert code == 0, err
    (row,) = lab.rows()
    assert problems(row) == []
    assert row["dataset"].startswith("mix of 25 % ")
    other = row["data_sources"][str(lab.folder / "other.json")]
    assert other["weight"] == 0.75
    assert sum(source["tokens"] for source in row["data_sources"].values()) == row["tokens_seen"]
    assert other["share"] == pytest.approx(0.75, abs=0.3)
    assert other["share"] == other["tokens"] / row["tokens_seen"]
    assert len(row["data_digest"]) == 32
    assert row["start_digest"] is None, "fresh weights"
