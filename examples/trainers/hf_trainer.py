"""Hugging Face's Trainer with FSDP2, and compressed gradients and parameters.

    torchrun --nproc_per_node 2 -m examples.trainers.hf_trainer --compress topk        # or stock, or identity

`comm_compress.attach` is called in a callback when training begins: by then the model is sharded, whoever does it.
Here transformers shards it while loading (`DistributedConfig`), on CPUs as on GPUs. With
``TrainingArguments(fsdp=True)`` accelerate does it inside `Trainer.train`, on GPUs only, and the callback is the same.
Needs transformers 5.23 and accelerate 1.15 (``pip install -e .[examples]``).
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.distributed import DistributedConfig

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, VOCABULARY, WIDTH, batch, choice, methods, report


class Compression(TrainerCallback):  # type: ignore[misc]
    """Attaches compressed collectives to the model that is about to be trained."""

    def __init__(self, gradients: str, parameters: str) -> None:
        self.gradients, self.parameters = gradients, parameters
        self.handle: cc.Handle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **everything: Any) -> None:
        """``model`` is what Trainer trains."""
        self.handle = cc.attach(everything["model"], reduce_scatter=self.gradients, all_gather=self.parameters)


class Sequences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Every rank's batches, one sequence after another: Trainer gives each rank its share."""

    def __init__(self) -> None:
        self.tokens = torch.cat([batch(rank, step) for step in range(STEPS) for rank in range(dist.get_world_size())])

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def sharded_model() -> nn.Module:
    """A Llama of two layers, loaded as a pretrained one would be."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    weights = LlamaForCausalLM(config).state_dict()  # in place of a pretrained model's name or folder
    sizes = DistributedConfig(fsdp_size=dist.get_world_size())
    model: nn.Module = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=weights, distributed_config=sizes
    )
    return model


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    start()
    compression = None if compress == "stock" else Compression(*methods(compress))
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            max_steps=STEPS,
            learning_rate=0.01,
            logging_steps=1,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
            use_cpu=not torch.cuda.is_available(),
        )
        trainer = Trainer(
            sharded_model(), arguments, train_dataset=Sequences(), callbacks=[compression] if compression else []
        )
        trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    handle = compression.handle if compression else None
    report(losses, trainer.model, handle.ledger if handle else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
