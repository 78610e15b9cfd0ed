"""Which word runs which module: all commands of the project, by what one wants to do."""

from __future__ import annotations

from typing import NamedTuple

GROUPS = ("Train", "Compare", "Look closer", "Methods", "This machine")


class Command(NamedTuple):
    """``words``: what is typed after ``fsdp-lab``. ``module``: what ``python -m`` would run. ``text``: what it does."""

    words: str
    module: str
    text: str
    group: str


_TRAIN, _COMPARE, _LOOK, _METHODS, _MACHINE = GROUPS
COMMANDS = (
    Command("train", "fsdp_lab.commands.train", "train, measure and record a model: starts the ranks", _TRAIN),
    Command("validate", "fsdp_lab.validate", "the perplexity of a saved model", _TRAIN),
    Command("chat", "fsdp_lab.chat", "continue a prompt with a saved model, or answer it", _TRAIN),
    Command("settings", "fsdp_lab.settings", "check or show the settings of a run before it starts", _TRAIN),
    Command("launch", "fsdp_lab.launch", "torchrun with exit codes that say what happened", _TRAIN),
    Command("data build", "fsdp_lab.data.build", "rebuild the corpora from packages of public registries", _TRAIN),
    Command("data download", "fsdp_lab.data.download_wikipedia", "Wikipedia articles from the hub as one file", _TRAIN),
    Command("eagle train", "fsdp_lab.eagle.train", "train a draft model for a target", _TRAIN),
    Command("eagle data", "fsdp_lab.eagle.data", "conversations as training data of a draft", _TRAIN),
    Command("eagle evaluate", "fsdp_lab.eagle.evaluate", "how good a draft is, and the time that it saves", _TRAIN),
    Command("eagle export", "fsdp_lab.eagle.draft.export", "write a draft in another program's format", _TRAIN),
    Command("eagle target", "experiments.drafts.smollm2", "SmolLM2-135M as a folder: a target without a hub", _TRAIN),
    Command("eagle questions", "experiments.drafts.questions", "questions about the embedded corpus", _TRAIN),
    Command("eagle run", "experiments.drafts.real_run", "from nothing to a draft that decodes", _TRAIN),
    Command("sweep", "experiments.sweep", "run everything that a recipe compares", _COMPARE),
    Command("speedrun", "experiments.speedrun", "a race to a loss behind a slow link: enter, check, records", _COMPARE),
    Command("finetuning", "experiments.finetuning", "a trained model, and another text to fine-tune it on", _COMPARE),
    Command("report", "analysis.report", "one page of all figures and tables of results rows", _COMPARE),
    Command("chart", "analysis.chart", "methods, optimizers and local steps on one chart", _COMPARE),
    Command("chart rates", "analysis.chart.rates", "each arm's learning rate, chosen from tuning rows", _COMPARE),
    Command("claim", "analysis.claim", "do rows support so many bits within such a margin?", _COMPARE),
    Command("tables", "analysis.tables", "comparisons as tables: text, Markdown, LaTeX", _COMPARE),
    Command("checks", "analysis.checks", "what makes a comparison unfair", _COMPARE),
    Command("drafts", "analysis.drafts", "acceptance length of drafts against bytes", _COMPARE),
    Command("results", "fsdp_lab.results", "check, show and migrate files of results rows", _COMPARE),
    Command("rows", "analysis.rows", "results rows as one CSV file", _COMPARE),
    Command("rows pack-curves", "analysis.rows.curves.pack", "pack loss curves into one archive", _COMPARE),
    Command("audit", "fsdp_lab.audit", "who sends which bytes in any program, run as it is", _LOOK),
    Command("trace", "fsdp_lab.trace", "where the time of a profiled run goes", _LOOK),
    Command("links", "experiments.links", "a run behind emulated slow links, with counted bytes", _LOOK),
    Command("links bottleneck", "experiments.links.bottleneck", "is communication the bottleneck?", _LOOK),
    Command("links calibrate", "experiments.links.calibrate", "measure what predictions need to know", _LOOK),
    Command("links matrix", "experiments.links.matrix", "step times by model, ranks, rate and method", _LOOK),
    Command("plan", "experiments.planning", "layout and shares for unequal devices, predicted and checked", _LOOK),
    Command("predict", "analysis.predict", "the fastest method behind a link, from a calibration", _LOOK),
    Command("predict speedup", "analysis.predict.speedup", "what compression gained behind measured links", _LOOK),
    Command("predict quality", "analysis.costs", "which measurement of a method predicts its cost", _LOOK),
    Command("predict growth", "analysis.costs.growth", "how an arm's cost grows with size, length or rate", _LOOK),
    Command("predict scaling", "analysis.predict.scaling", "on paper: 8 to 1024 ranks", _LOOK),
    Command("fidelity", "experiments.fidelity", "what each method sends, and what arrives", _LOOK),
    Command("fidelity capture", "experiments.fidelity.capture", "save real gradients and parameters of a run", _LOOK),
    Command("fidelity update-error", "experiments.fidelity.update_error", "what a method does to Adam's steps", _LOOK),
    Command("fidelity by-parameter", "experiments.fidelity.by_parameter", "outliers and errors by parameter", _LOOK),
    Command("methods", "fsdp_lab.commands.methods", "all methods; one method with its settings", _METHODS),
    Command("systems", "fsdp_lab.commands.systems", "published systems (ZeRO++, DiLoCo, ...) as settings", _METHODS),
    Command(
        "new-method", "fsdp_lab.commands.new_method", "a package with a method of your own, tests and all", _METHODS
    ),
    Command("judge", "experiments.judge", "your own method on the chart: laws, bytes, trainings", _METHODS),
    Command("judge page", "analysis.judged", "the page about a judged method, made again", _METHODS),
    Command("conformance", "fsdp_lab.commands.conformance", "does a method obey all laws? also your own", _METHODS),
    Command(
        "bench activations",
        "experiments.bench.traffic.activations",
        "what compressed all-reduces of activations cost",
        _METHODS,
    ),
    Command("bench codecs", "experiments.bench.traffic.codecs", "how fast methods encode and decode", _METHODS),
    Command(
        "bench collectives",
        "experiments.bench.traffic.collectives",
        "what a collective costs beyond memory and wire",
        _METHODS,
    ),
    Command("bench units", "experiments.bench.traffic.units", "what many small FSDP2 units cost", _METHODS),
    Command("bench rans", "experiments.bench.traffic.rans", "how fast rANS codes bytes, beside htscodecs", _METHODS),
    Command(
        "bench link", "experiments.bench.traffic.link", "claimed bytes against the interface's own counter", _METHODS
    ),
    Command(
        "bench audit", "experiments.bench.traffic.audit", "audited bytes against the interface's counter", _METHODS
    ),
    Command(
        "bench layouts", "experiments.bench.traffic.layouts", "a model divided in every layout, behind a link", _METHODS
    ),
    Command(
        "bench operators", "experiments.bench.computation.operators", "what each operator of the model takes", _METHODS
    ),
    Command(
        "bench roofline",
        "experiments.bench.computation.roofline",
        "where a step's time goes, and what is possible",
        _METHODS,
    ),
    Command("bench overlap", "experiments.links.overlap", "what hides behind computation on a CPU", _METHODS),
    Command("bench harness", "experiments.bench.trainer.harness", "what the trainer costs over a bare loop", _METHODS),
    Command("bench checkpoint", "experiments.bench.trainer.checkpoint", "what saving and resuming cost", _METHODS),
    Command("bench profiler", "experiments.bench.trainer.profiler", "what a profile costs", _METHODS),
    Command("bench tokenize", "experiments.bench.trainer.tokenize", "how fast text becomes tokens", _METHODS),
    Command("bench report", "experiments.bench.trainer.report", "how long a report of many rows takes", _METHODS),
    Command(
        "bench eagle", "experiments.bench.computation.eagle", "what chunked losses save in training drafts", _METHODS
    ),
    Command("doctor", "fsdp_lab.commands.doctor", "what this machine has, and what works on it", _MACHINE),
    Command("gpu-day", "experiments.gpu_day", "all that needs a GPU, in half an hour; or its rehearsal", _MACHINE),
    Command("completion", "fsdp_lab.commands.completion", "completion of commands on Tab, for bash and zsh", _MACHINE),
    Command("faults", "experiments.faults", "runs that are broken on purpose, and must end as promised", _MACHINE),
    Command("faults soak", "experiments.faults.soak", "a long run that is killed again and again", _MACHINE),
    Command(
        "faults nodes", "experiments.faults.nodes", "runs over several emulated machines, and lost ranks", _MACHINE
    ),
    Command("faults slurm", "experiments.faults.slurm", "a sweep's scripts under a Slurm on this machine", _MACHINE),
    Command("faults hostile", "experiments.faults.hostile", "hostile files and flags against our commands", _MACHINE),
    Command(
        "faults wrong-inputs", "experiments.faults.wrong_inputs", "wrong inputs, and the message that answers", _MACHINE
    ),
)

FAMILIES = {
    "bench": "benchmarks",
    "data": "corpora to train on",
    "eagle": "draft models (EAGLE-3)",
}
"""Words that are no command themselves, but the first word of several."""

STARTED_BY_OTHERS = (
    "experiments.gpu_day.gpu_tests",
    "experiments.gpu_day.nccl",
    "experiments.gpu_day.overlap",
    "experiments.gpu_day.tiny_target",
    "experiments.judge.stage",
    "experiments.links.collective_times",
    "experiments.links.step_times",
    "experiments.network.tcp_stream",
    "fsdp_lab.commands.reference.methods_file",
    "fsdp_lab.commands.reference.reference_pages",
    "fsdp_lab.parallel.planning.measuring.measure",
)
"""Modules with a command line of their own that nobody types: programs of ranks, and what developers run."""

RUNS = {"fsdp_lab.commands.train": "fsdp_lab.train", "fsdp_lab.commands.conformance": "comm_compress.conformance"}
"""Commands of ours in front of another module with a command line: they are named alike."""


def typed() -> dict[str, str]:
    """How each module is called through this command: ``{"analysis.report": "fsdp-lab report", ...}``."""
    lines = {command.module: f"fsdp-lab {command.words}" for command in COMMANDS}
    return lines | {behind: lines[front] for front, behind in RUNS.items()}


def below(word: str) -> list[Command]:
    """The commands of two words that begin with ``word``."""
    return [command for command in COMMANDS if command.words.startswith(f"{word} ")]
