"""A tiny random Llama that reads bytes and has a chat template, as a folder: what a rehearsal drafts for.

python -m experiments.gpu_day.tiny_target --out FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.settings.flag_values import new_folder
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings

_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build(folder: Path) -> None:
    """Write weights, configuration and tokenizer to ``folder``."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = _TEMPLATE
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **heads)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(argv: Sequence[str]) -> int:
    """Write the folder, if it is not there; returns the exit code."""
    parser = program("experiments.gpu_day.tiny_target", __doc__)
    parser.add_argument("--out", type=new_folder, required=True, help="folder to make")
    out: Path = parser.parse_args(argv).out
    if not (out / "tokenizer.json").exists():  # written last
        build(out)
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
