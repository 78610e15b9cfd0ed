"""What the target sees of each conversation, kept in a bounded folder for later passes over the data and other runs.

The target sees a conversation alone and not in its batch, whose padding would change the rounding. So a run is the
same, bit for bit, whatever the folder holds: nothing, everything, some, or what other ranks and runs left there.

DIR/TARGET/ab/abcd... .safetensors is one conversation: ``features`` ``[T, 3h]`` and ``last`` ``[T, h]`` in the dtype of
the target's arithmetic, with a checksum. TARGET is a digest of the target and of everything that its rounding depends
on; the file's name is a digest of the conversation's tokens. A file is written completely or not at all, and none is
ever deleted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sys
import tempfile
import zlib
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fsdp_lab.eagle.data.tokens import Batch
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.eagle.draft.target import Seen, Target
from fsdp_lab.files.atomic import atomic_file
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.environment import hardware
from fsdp_lab.run.run import Run

_LAYOUT = 1  # version of the files' layout: another number gives another folder
_NOT_IN_DIGEST = ("_name_or_path", "transformers_version")  # they say who wrote a configuration, and where


def open_features(config: EagleConfig, target: Target, run: Run) -> Features | None:
    """The features of ``config``, or None if the target runs over every batch. Call this before ``target`` is sharded.

    ValueError where nothing can be written in the folder.
    """
    eagle = config.eagle
    if eagle.features == "online":
        return None
    folder = Path(eagle.features_dir or Path(config.run.output_dir) / "features")
    return Features(target, folder, round(eagle.features_gb * 1e9), run.ranks)


class Features:
    """Reads the features of conversations from a folder; runs ``target`` over the others, and keeps their features."""

    def __init__(self, target: Target, folder: Path, limit: int, ranks: Ranks) -> None:
        self._target, self._ranks = target, ranks
        self._kept = FeatureFolder(folder, digest_of_target(target, ranks.device), limit, ranks.rank)
        self._read = self._computed = 0

    def seen(self, batch: Batch) -> Seen:
        """What the target sees of a batch on the CPU, on the target's device, with zeros at padding.

        ``features`` is ``[B, T, 3h]``, ``last`` ``[B, T, h]``.
        """
        each = [self._of(tokens) for tokens in batch.conversations()]
        features, last = (pad_sequence([seen[i] for seen in each], batch_first=True) for i in range(2))
        return Seen(features, last)

    def row(self) -> dict[str, Any]:
        """The fields of a results row, over all ranks. All ranks call this together."""
        counts = torch.tensor([self._read, self._computed], device=self._ranks.device)
        read, computed = self._ranks.sum(counts).tolist()
        held = self._ranks.broadcast(self._kept.held() if self._ranks.is_first else 0)
        return {"features_read": read, "features_computed": computed, "features_gb": held / 1e9}

    def _of(self, tokens: Tensor) -> Seen:
        device = self._target.head.device
        name = hashlib.sha256(_bytes(tokens)).hexdigest()
        seen = self._kept.find(name)
        if seen is not None:
            self._read += 1
            return _on(device, seen)
        self._computed += 1
        features, last = self._target(tokens[None].to(device))
        seen = Seen(features[0], last[0])
        self._kept.add(name, _on(torch.device("cpu"), seen))
        return seen


class FeatureFolder:
    """The subfolder of one target in ``folder``. ``limit``: how many bytes all files of ``folder`` may have.

    Other processes may write there, too. Each measures the free space again when it has filled an eighth of what was
    free the last time; so P processes exceed the limit by no more than P times the last such eighth. Once full, it
    stays full. ValueError when nothing can be written.
    """

    def __init__(self, folder: Path, target: str, limit: int, rank: int = 0) -> None:
        self._folder, self._own, self._limit, self._rank = folder, folder / target, limit, rank
        self._allowance = 0  # bytes that may be written before the free space is measured again
        self._takes_more = True
        self._said: set[str] = set()
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._own):
                pass
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # what a full disk holds can still be read
                message = f"features_dir: cannot write in {folder} ({error.strerror}); name another folder"
                raise ValueError(message) from None

    def held(self) -> int:
        """The bytes of all files in the folder, with those of other targets and of killed writers."""
        total = 0
        for where, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(OSError):  # it was another process's unfinished file
                    total += os.stat(os.path.join(where, name)).st_size
        return total

    def find(self, name: str) -> Seen | None:
        """The features of the conversation ``name`` on the CPU; None where the file is missing or damaged."""
        path = self._path(name)
        try:
            tensors = load(path.read_bytes())
            seen = Seen(tensors["features"], tensors["last"])
            if torch.equal(tensors["checksum"], _checksum(name, seen)):
                return seen
            why = "the checksum is another"
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            why = f"{type(error).__name__}: {error}"
        self._say_once("damaged", f"{path} is damaged and made anew, as are others like it ({why})")
        return None

    def add(self, name: str, seen: Seen) -> None:
        """Keeps the features of the conversation ``name`` if there is space; a full or missing disk is no error."""
        content = save({**seen._asdict(), "checksum": _checksum(name, seen)})
        if not self._has_space_for(len(content)):
            return
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path, durable=False) as file:  # the checksum tells what a crash left
                file.write(content)
        except OSError as error:
            self._takes_more = False
            self._say_once("unwritable", f"cannot write in {self._folder} ({error.strerror}): no more is kept")

    def _has_space_for(self, size: int) -> bool:
        if self._takes_more and size > self._allowance:
            space = self._limit - self.held()
            self._takes_more = size <= space
            self._allowance = max(size, space // 8)
        self._allowance -= size
        return self._takes_more

    def _path(self, name: str) -> Path:
        return self._own / name[:2] / f"{name}.safetensors"

    def _say_once(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            print(f"features: rank {self._rank}: {text}", file=sys.stderr, flush=True)


def digest_of_target(target: Target, device: torch.device) -> str:
    """16 hex digits of the target and of everything that decides how it rounds on ``device``.

    That is its parameters, buffers, configuration and tapped layers, the versions, the processor and, on a CPU, the
    number of threads. The path of its folder is not part of it.
    """
    config = {name: value for name, value in target.config.to_dict().items() if name not in _NOT_IN_DIGEST}
    of_cpu = [hardware()["cpu"], torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    about = {
        "layout": _LAYOUT,
        "config": config,
        "attention": target.config._attn_implementation,
        "layers": list(target.layers),
        "versions": [torch.__version__, transformers.__version__],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else of_cpu,
        "matmul": torch.get_float32_matmul_precision(),
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, tensor in sorted(chain(target.named_parameters(), target.named_buffers())):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()[:16]


def _checksum(name: str, seen: Seen) -> Tensor:
    checksum = zlib.crc32(name.encode())
    for tensor in seen:
        checksum = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(_bytes(tensor), checksum)
    return torch.tensor(checksum)


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _on(device: torch.device, seen: Seen) -> Seen:
    return Seen(seen.features.to(device), seen.last.to(device))
