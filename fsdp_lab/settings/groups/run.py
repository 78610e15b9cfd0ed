"""Where a run writes, how often it looks up, and when it gives up."""

from dataclasses import dataclass

from fsdp_lab.settings.reading.fields import Settings, setting

_SAFE_NAME = (r"[A-Za-z0-9][A-Za-z0-9._+=,@-]{0,127}", "letters, digits and ._+=,@- only (it names a folder)")
_TRACKER = "(tensorboard|wandb|mlflow|trackio)"
_TRACKERS = (rf"{_TRACKER}( *, *{_TRACKER})*", "one or more of tensorboard, wandb, mlflow, trackio, by commas")


@dataclass(frozen=True)
class RunConfig(Settings):
    """Where the run writes, how often it looks up, and when it gives up."""

    output_dir: str = setting("fsdp_output", "folder for logs, checkpoints and models", affects_training=False)
    results_path: str = setting("results/results.jsonl", "file that gets one row per run", affects_training=False)
    run_name: str | None = setting(
        None, "name of the run; none: made of method, model and time", affects_training=False, pattern=_SAFE_NAME
    )
    seed: int = setting(42, "seed of initialisation, data order and stochastic rounding", at_least=0, at_most=2**32 - 1)
    log_interval: int = setting(10, "optimiser steps between log lines", at_least=1, affects_training=False)
    eval_steps: int = setting(0, "optimiser steps between evaluations; 0: only at the end", at_least=0)
    target_ppl: float | None = setting(
        None,
        "record when an evaluation first reaches this perplexity (give eval_steps: only evaluations can tell)",
        above=1,
        affects_training=False,
    )
    ppl_at_s: float | None = setting(
        None, "evaluate once after so many seconds of training (steps alone)", above=0, affects_training=False
    )
    grad_error_every: int = setting(
        50,
        "optimiser steps between comparisons of the compressed gradient with the exact one (not timed); 0: never",
        at_least=0,
        affects_training=False,
    )
    curves_dir: str | None = setting(
        None, "folder for the run's loss curve; none: the run's own in output_dir", affects_training=False
    )
    profile: bool = setting(
        False, "record a torch.profiler trace of some steps, and say where their time went", affects_training=False
    )
    profile_steps: int = setting(5, "steps in the profile", at_least=1, affects_training=False)
    max_nonfinite_steps: int = setting(
        10,
        "give up after this many skipped steps (NaN or Inf) in a row; fp16's do not count until its scale is 1",
        at_least=1,
    )
    timeout_s: int = setting(300, "seconds that a rank waits for the others", at_least=1, affects_training=False)
    hang_timeout_s: int = setting(
        0,
        "after the first step, seconds without progress after which the run ends and names the rank that hangs (more "
        "than a step takes, and less than timeout_s); 0: only timeout_s",
        at_least=0,
        affects_training=False,
    )
    stop_grace_s: int = setting(
        20,
        "seconds that a signal to stop may go unheeded, because ranks hang, before the run is recorded and ended",
        at_least=0,
        affects_training=False,
    )
    save_steps: int = setting(
        0, "optimiser steps between checkpoints; 0: none but save_on_stop's", at_least=0, affects_training=False
    )
    save_on_stop: bool = setting(
        True, "save a checkpoint when told to stop (SIGTERM and the like)", affects_training=False
    )
    keep_checkpoints: int = setting(2, "newest checkpoints to keep", at_least=1, affects_training=False)
    resume: str = setting(
        "auto",
        "auto: go on with an unfinished run of this name that has checkpoints; never; or the folder of a checkpoint",
        affects_training=False,
        exists=("folder", "auto", "never"),
    )
    resume_resharded: bool = setting(
        False,
        "resume on another number of ranks: not bit for bit (docs/trainer/checkpoints.md)",
        affects_training=False,
    )
    resume_changed: bool = setting(
        False, "resume although settings that affect the training have changed", affects_training=False
    )
    tensorboard: bool = setting(
        True, "write TensorBoard events (and let the script serve them)", affects_training=False
    )
    trackers: str | None = setting(
        None,
        "where the run's numbers also go: wandb, mlflow, trackio, by commas (docs/comparing/trackers.md); tensorboard "
        "may be named too, and --tensorboard says whether it is written",
        affects_training=False,
        pattern=_TRACKERS,
    )
    save_model: bool = setting(True, "save the trained model in output_dir", affects_training=False)
    virtual_ranks: int = setting(
        0, "train as so many ranks would, all of them played by this one process; 0: real ranks", at_least=0
    )
    threads: int = setting(0, "CPU threads per rank; 0: cores / ranks on the machine", at_least=0)

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The run's trackers, each once: TensorBoard as ``tensorboard`` says, then the others as they are named."""
        named = [name.strip() for name in (self.trackers or "").split(",") if name.strip()]
        others = [name for name in dict.fromkeys(named) if name != "tensorboard"]
        return (*(("tensorboard",) if self.tensorboard else ()), *others)
