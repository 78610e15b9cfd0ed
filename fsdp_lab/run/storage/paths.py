"""Where one run writes.

fsdp_output/runs/<run_name>/config.yaml      every setting, resolved
                            checkpoints/     with --save_steps, or when told to stop (docs/trainer/checkpoints.md)
                            curve.jsonl      losses and other numbers, step by step (or <curves_dir>/<run_name>.jsonl)
                            final_model/     Hugging Face folder with tokenizer (of a draft: draft/)
fsdp_output/logs/<run_name>/tensorboard/     TensorBoard events
                            profiler/        traces, with --profile
results/results.jsonl                        one row a run, also of a run that failed
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsdp_lab.settings.groups import RunConfig


@dataclass(frozen=True)
class Paths:
    """The files and folders of one run. All but ``results`` are the run's own."""

    folder: Path
    model: Path
    curve: Path
    events: Path
    traces: Path
    results: Path

    @classmethod
    def of(cls, config: RunConfig, name: str, model: str) -> Paths:
        """Those of the run ``name``; ``model`` is the name of the folder for what is trained."""
        output = Path(config.output_dir)
        folder, logs = output / "runs" / name, output / "logs" / name
        curve = folder / "curve.jsonl" if config.curves_dir is None else Path(config.curves_dir) / f"{name}.jsonl"
        return cls(folder, folder / model, curve, logs / "tensorboard", logs / "profiler", Path(config.results_path))

    @property
    def settings(self) -> Path:
        """The file with every setting of the run."""
        return self.folder / "config.yaml"

    def written(self, config: RunConfig) -> dict[str, Path]:
        """What a run that has ended well has left, by what it is called in the summary."""
        paths = {"results row": self.results, "settings": self.settings, "loss curve": self.curve}
        if config.save_model:
            paths["model"] = self.model
        if config.tensorboard:
            paths["TensorBoard"] = self.events
        if config.profile:
            paths["profile"] = self.traces
        return paths
