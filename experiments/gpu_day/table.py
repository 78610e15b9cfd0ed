"""The stages of a day with a GPU, most valuable first: their commands, what these leave, and how long they may take.

The estimates are for one H100, on which tests, codecs and overlap were run in smaller sizes; the others are guesses. A
rehearsal runs the same programs on the CPU, in small sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_lab.settings.systems.table import recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "experiments" / "recipes" / "going_on" / "continued_124m.yaml"
REHEARSAL = Path(__file__).with_name("rehearsal.yaml")
FEW_BITS = tuple(str(recipe(name).settings["comm_compress"]) for name in ("five-bits-moves", "two-bits"))
"""Our own systems of few bits, as methods of both directions: what is asked of a GPU is asked of them, too."""
# Methods whose kernels are in Triton come first: what others do in torch's operations may take long on a large unit.
METHODS = (
    *("identity", "bf16", "fp16", "int8", "int4", "fp8", "topk", "signsgd", "onebit", "qsgd", "nc", "terngrad"),
    *(half for method in FEW_BITS for half in method.split(" + ")),
    *("delta", "int8 entropy=rans", "delta mode=lossless"),
    *("uniform", "randomk", "powersgd", "thresholdv", "dgc", "lowrank", "binned", "taco", "tahquant"),
)


@dataclass(frozen=True)
class Stage:
    """One stage: its commands run one after the other, each in a process of its own, from the root of the checkout.

    ``estimate_s``: seconds that it is expected to take; ``limit_s``: seconds after which it is stopped; ``least_s``:
    with fewer seconds left it is not begun. ``results``: files in its folder that must be there and readable when it
    has ended well. ``page``: one of them, in Markdown, for the day's page; None: the last lines that were printed.
    """

    number: int
    name: str
    about: str
    needs: str
    estimate_s: int
    limit_s: int
    least_s: int
    commands: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]
    page: str | None = None

    @property
    def archive(self) -> str:
        """The file in the day's folder that holds all that the stage left."""
        return f"{self.number}-{self.name}.zip"


def stages(work: Path, rehearse: bool, target: Path | None = None) -> list[Stage]:
    """All stages. ``work``: each has a folder there, of its name. ``target``: of the drafts; None: SmolLM2 is made."""
    return [
        _tests(work / "tests", rehearse),
        _codecs(work / "codecs", rehearse),
        _overlap(work / "overlap", rehearse),
        _quality(work / "quality", rehearse),
        _operators(work / "operators", rehearse),
        _drafts(work / "drafts", rehearse, target),
    ]


def names() -> list[str]:
    """The names of all stages, in order."""
    return [stage.name for stage in stages(Path(), rehearse=True)]


def _python(module: str, *words: object) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *map(str, words))


def _tests(folder: Path, rehearse: bool) -> Stage:
    limit = 420
    size: Sequence[object] = ("--may_skip",) if rehearse else ("--processes", 8)
    tests = ("--out", folder / "tests.json", "--seconds", limit - 180, *size)
    size = ()
    if rehearse:
        size = ("--device", "cpu", "--model", "gpt2-nano", "--batch_size", 1, "--length", 16, "--steps", 2)
        size = (*size, "--at_once", 1, "--seconds", 180, "--methods", "none", "identity + identity")
    trained = ("--out", folder, *size)
    return Stage(
        1,
        "tests",
        "all tests that are marked gpu (a rehearsal finds them, and skips them), and trainings of two ranks over NCCL",
        "pytest; with pytest-xdist several at once",
        180,
        limit,
        60,
        (_python("experiments.gpu_day.gpu_tests", *tests), _python("experiments.gpu_day.nccl", *trained)),
        ("tests.json", "nccl.json", "nccl.md"),
        "nccl.md",
    )


def _codecs(folder: Path, rehearse: bool) -> Stage:
    size: Sequence[object] = ("--device", "cuda", "--mib", 512, "--repeats", 7, "--methods", *METHODS)
    if rehearse:
        size = ("--device", "cpu", "--mib", 0.25, "--repeats", 1, "--methods", "bf16", "onebit", "powersgd")
    files = ("--json", folder / "codecs.json", "--markdown", folder / "codecs.md")
    return Stage(
        2,
        "codecs",
        "every codec in GB/s and beside a plain copy, and its peers",
        "bitsandbytes and torchao, where they are installed, are measured, too",
        240,
        330,
        60,
        (_python("experiments.bench.traffic.codecs", *size, *files),),
        ("codecs.json", "codecs.md"),
        "codecs.md",
    )


def _overlap(folder: Path, rehearse: bool) -> Stage:
    size: Sequence[object] = ("--device", "cuda", "--model", "gpt2-62m", "--batch_size", 16, "--length", 512)
    if rehearse:
        size = ("--device", "cpu", "--model", "llama-nano", "--batch_size", 1, "--length", 16, "--vocab_size", 512)
        size = (*size, "--steps", 1, "--timed_steps", 1, "--warm_up", 2, "--methods", "none", "int4 hadamard + delta")
    return Stage(
        3,
        "overlap",
        "encoding and decoding beside the model's own kernels, by stream: one rank whose peer is itself (loopback)",
        "a CUDA build of torch with CUPTI, for traces of kernels",
        90,
        180,
        45,
        (_python("experiments.gpu_day.overlap", *size, "--out", folder),),
        ("overlap.json", "overlap.md"),
        "overlap.md",
    )


def _quality(folder: Path, rehearse: bool) -> Stage:
    rows = folder / "quality.jsonl"
    size: Sequence[object] = (REHEARSAL,) if rehearse else (RECIPE, "--jobs", 6)
    return Stage(
        4,
        "quality",
        "what few bits cost GPT-2 (124 million parameters) that goes on with another text, in pairs of seeds",
        "60 GB of GPU memory; the corpus prose (fsdp-lab data build prose)",
        420,
        540,
        120,
        (_python("experiments.sweep", *size, "--out", rows),),
        ("quality.jsonl",),
    )


def _operators(folder: Path, rehearse: bool) -> Stage:
    model = "llama-mini" if rehearse else "z2all-1b"
    size: Sequence[object] = ("--mixed_precision", "bf16", "--batch_size", 2, "--steps", 5, "--warm_up", 3)
    size = (*size, "--leave_out", "precision")  # float32 at this size takes minutes
    if rehearse:
        size = ("--batch_size", 1, "--length", 16, "--steps", 1, "--warm_up", 1, "--threads", 1)
        left_out = ("compile", "attention", "rope", "swiglu", "adamw", "checkpointing", "precision")
        size = (*size, "--leave_out", *left_out)
    words = ("--model", model, *size, "--repeats", 1, "--out", folder)
    return Stage(
        5,
        "operators",
        "what each operator of a model of 1.26 billion parameters takes, with MFU and memory",
        "80 GB of GPU memory for the naive variant, half for others; liger-kernel and flash-attn are measured if there",
        420,
        540,
        90,
        (_python("experiments.bench.computation.operators", *words),),
        (f"operators_{model}.json", f"operators_{model}.md"),
        f"operators_{model}.md",
    )


def _drafts(folder: Path, rehearse: bool, target: Path | None) -> Stage:
    before: tuple[tuple[str, ...], ...] = ()
    size: Sequence[object] = ("--questions", 1200, "--choice", 16, "--held_out", 60, "--answer_batch", 64)
    size = (*size, "--epochs", 2, "--eval_steps", 200, "--prompts", 30)
    if rehearse:
        target = target or folder / "tiny_target"
        before = (_python("experiments.gpu_day.tiny_target", "--out", target),)
        size = ("--questions", 8, "--choice", 2, "--held_out", 4, "--answer_tokens", 8, "--answer_batch", 4)
        size = (*size, "--epochs", 1, "--eval_steps", 1, "--prompts", 2, "--dtype", "fp32")
    given = () if target is None else ("--target_dir", target)
    ahead = ("--", "--steps_ahead", 2, "--threads", 1, "--tensorboard", "false") if rehearse else ()
    return Stage(
        6,
        "drafts",
        "an EAGLE-3 draft: the target's answers, training, and decoding with it",
        "--target_dir, a folder with a chat template; or the extra smollm2 and a package registry, to make one",
        300,
        480,
        120,
        (*before, _python("experiments.drafts.real_run", "--out", folder / "run", *given, *size, *ahead)),
        ("run/real_run.json", "run/real_run.md"),
        "run/real_run.md",
    )
