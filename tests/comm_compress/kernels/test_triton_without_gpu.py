"""Triton kernels without a GPU: `test_triton_kernels` in Triton's interpreter, and compiled for one that is not there.

Triton comes with CUDA builds of torch. Beside a CPU build of torch 2.13: ``pip install --no-deps triton==3.7.1``
(280 MB; the interpreter of 3.9 gives masks that it refuses itself), then
``pytest tests/comm_compress/kernels/test_triton_without_gpu.py``. On a GPU, ``pytest -m gpu`` runs the kernels
themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comm_compress.kernels import BlockCode, Residual
from comm_compress.kernels.coding import rans_stream
from comm_compress.kernels.coding.frequencies import TOTAL
from comm_compress.kernels.quantisers.matrix_scales.matrices import Quantiser, Shape, matrices_of
from comm_compress.kernels.tools.scratch import fresh

triton = pytest.importorskip("triton", reason="no triton, which comes with CUDA builds of torch")
ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")


@pytest.mark.skipif(
    triton.__version__ < "3.7" and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="Triton's interpreter before 3.7 makes numbers of arrays, which numpy 2.4 refuses; numpy 2.3 runs it",
)
@pytest.mark.timeout(900)
def test_interpreted_kernels_give_the_references_bytes() -> None:
    """In a process of its own: the interpreter has to be chosen before the first import."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "tests/comm_compress/kernels/test_triton_kernels.py",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout


@pytest.fixture
def assembly(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """PTX for compute capability 9.0 of every kernel that is launched from here on, by its name; nothing runs."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("TRITON_INTERPRET is set")
    found: dict[str, str] = {}

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        constants = {name: value for name, value in keywords.items() if name in kernel.arg_names}
        options = {name: value for name, value in keywords.items() if name not in constants}
        signature, attributes = dict.fromkeys(kernel.arg_names, "constexpr"), {}
        for place, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
            signature[name] = "i32" if kernel.params[place].do_not_specialize else _type(value)
            if signature[name] == "constexpr":
                constants[name] = value
            elif (
                not isinstance(value, float)
                and (value.data_ptr() if isinstance(value, torch.Tensor) else value) % 16 == 0
            ):
                attributes[(place,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
        target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
        found[kernel.__name__] = triton.compile(source, target=target, options=options).asm["ptx"]

    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", compile_only)
    return found


def _type(value: Any) -> str:
    """What a launch makes of an argument."""
    if isinstance(value, torch.Tensor):
        return "*" + triton.runtime.jit.type_canonicalisation_dict[str(value.dtype).removeprefix("torch.")]
    if value is None or value == 1:
        return "constexpr"
    return "fp32" if isinstance(value, float) else "i32"


def as_written(ptx: str) -> None:
    """Every operation rounds, and to nearest: none is fused with the next, none approximate."""
    assert "st.global" in ptx
    assert not re.search(r"\bfma\.", ptx)
    assert not re.search(r"\b(div|sqrt|rcp)\.(full|approx)", ptx)
    flushing = {line.split()[0] for line in ptx.splitlines() if ".ftz" in line}
    assert flushing <= {"cvt.rmi.ftz.f32.f32"}  # the floor


CODES = [
    BlockCode(256, 8, 127),
    BlockCode(64, 4, 7),
    BlockCode(40, 3, 3, rounding="stochastic"),
    BlockCode(None, 4, 7, rotate=True),
    BlockCode(2048, 1, 1, size="l2", rounding="stochastic"),
    BlockCode(256, 1, 1, size="mean", rounding="sign"),
    BlockCode(256, 8, 448, rounding="e4m3"),
    BlockCode(8192, None, 1, "mean", "stochastic", 2.5),
    BlockCode(512, 8, 127, size="l2", rounding="stochastic", clip_sigmas=3.0, rotate=True),
]


@pytest.mark.parametrize("code", CODES, ids=str)
def test_block_codes_compile_and_contract_nothing(code: BlockCode, assembly: dict[str, str]) -> None:
    from comm_compress.kernels.quantisers.blocks import triton as blocks_cuda

    rows, n = torch.empty(2, 40_000), 40_000
    codes, scales = torch.empty(2, code.code_bytes(n), dtype=torch.uint8), torch.empty(2, code.blocks(n))
    blocks_cuda.encode(rows, code, (1, 2), codes, scales, Residual(rows, 0.9, torch.empty(2, n)))
    blocks_cuda.decode(codes, scales, code, rows.bfloat16())
    blocks_cuda.decode_sum(codes, scales, code, rows[0])
    assert len(assembly) >= 2
    for ptx in assembly.values():
        as_written(ptx)
    assembly.clear()
    blocks_cuda.encode_difference(rows[0].bfloat16(), rows[1], code, (1, 2), codes[:1], scales[:1])
    blocks_cuda.decode_add(codes[:1], scales[:1], code, rows[0])
    assert len(assembly) >= 2
    for ptx in assembly.values():
        as_written(ptx)


@pytest.mark.parametrize("bits", [1, 3, 8, 13, 31])
def test_streams_and_random_numbers_compile(bits: int, assembly: dict[str, str]) -> None:
    from comm_compress.kernels.elements.random import triton as random_cuda
    from comm_compress.kernels.packing.bits import triton as bits_cuda

    packed = torch.empty(2, 500 * bits, dtype=torch.uint8)
    bits_cuda.pack(torch.empty(2, 4000, dtype=torch.int32), bits, packed)
    bits_cuda.unpack(packed, bits, 4000)
    random_cuda.random_bits((1, 2**32 - 1), 4000, CPU)
    random_cuda.uniform((1, 2), 4000, CPU)
    random_cuda.noise_bits((1, 2), 2, 4000, CPU)
    assert assembly.keys() == {"_pack", "_unpack", "_random", "_noise"}
    for ptx in assembly.values():
        as_written(ptx)


def test_selection_compiles(assembly: dict[str, str]) -> None:
    from comm_compress.kernels.selection.select import triton as select_cuda

    for n in (3000, 30_000):
        places, values = torch.zeros(2, 30, dtype=torch.int32), torch.zeros(2, 30)
        select_cuda.largest(torch.zeros(2, n), places, values, Residual(torch.zeros(2, n), 0.9, torch.zeros(2, n)))
    assert assembly.keys() == {"_largest_of_row", "_keys", "_count", "_write"}


def test_means_and_votes_compile_and_contract_nothing(assembly: dict[str, str]) -> None:
    from comm_compress.kernels.quantisers.onebit import triton as onebit_cuda
    from comm_compress.kernels.quantisers.votes import triton as votes_cuda

    rows, means = torch.empty(2, 40_000), torch.empty(2, 40)
    bits, marks = torch.empty(2, 5000, dtype=torch.uint8), torch.empty(2, 40, dtype=torch.uint8)
    onebit_cuda.encode(rows, 1024, means, means, bits, Residual(rows, 0.9, rows))
    votes_cuda.encode(rows, 1024, (1, 2), marks, bits)
    for out in (rows, rows.bfloat16()):
        onebit_cuda.decode(means, means, bits, 1024, out)
        votes_cuda.decode(marks, bits, 1024, out)
    onebit_cuda.decode_sum(means, means, bits, 1024, rows[0])
    votes_cuda.majority(marks, bits, 1024, rows[0])
    assert assembly.keys() == {"_encode_means", "_decode_means", "_encode_votes", "_decode_votes"}
    for ptx in assembly.values():
        as_written(ptx)


@pytest.mark.parametrize("key", [None, (1, 2)], ids=["nearest", "random"])
def test_powers_and_casts_compile_and_contract_nothing(key: tuple[int, int] | None, assembly: dict[str, str]) -> None:
    from comm_compress.kernels.elements.casts import triton as casts_cuda
    from comm_compress.kernels.quantisers.powers import triton as powers_cuda

    rows, exponents = torch.empty(2, 40_000), torch.empty(2, 40_000, dtype=torch.uint8)
    signs, lowest = (torch.empty(2, n, dtype=torch.uint8) for n in (5000, 20))
    residual = Residual(rows, 0.9, rows)
    powers_cuda.encode(rows, key, exponents, signs, residual)
    powers_cuda.encode_window(rows, key, lowest, exponents, residual)
    for narrow in (torch.float16, torch.bfloat16):
        powers_cuda.decode(exponents, signs, rows.to(narrow))
        powers_cuda.decode_window(lowest, exponents, rows.to(narrow))
        casts_cuda.cast_with_feedback(rows, residual, rows.to(narrow))
        assert re.search(rf"cvt\.rn\.{'bf16' if narrow == torch.bfloat16 else 'f16'}(x2)?\.f32", assembly["_cast"])
        casts_cuda.sum_rows(rows.to(narrow), rows[0])
    casts_cuda.round_to_bytes(rows, rows[0, 0], exponents.view(torch.int8))
    casts_cuda.scale_bytes(exponents.view(torch.int8), rows[0, 0], rows)
    casts_cuda.subtract_bytes(exponents.view(torch.int8), rows[0, 0], rows)
    powers_cuda.decode_sum(exponents, signs, rows[0])
    powers_cuda.decode_window_sum(lowest, exponents, rows[0])
    names = {f"_{verb}_{what}" for verb in ("encode", "decode") for what in ("powers", "window")}
    assert assembly.keys() == names | {"_cast", "_round", "_bytes", "_sum"}
    for code in assembly.values():
        as_written(code)


@pytest.mark.parametrize("tables", [1, 3])
def test_entropy_coding_compiles(tables: int, assembly: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from comm_compress.kernels.coding.entropy import triton as entropy_cuda

    n, frequencies = 300_000, np.eye(tables, 256, dtype=np.int64) * TOTAL
    contexts = None if tables == 1 else torch.zeros(n, dtype=torch.uint8)
    symbols, sizes = torch.zeros(n, dtype=torch.uint8), torch.ones(3, dtype=torch.int32)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", torch.ones)  # nothing runs, and the sizes of blocks are looked at
        entropy_cuda.encode(symbols, contexts, frequencies, frequencies * 0, fresh)
    words = torch.zeros(3, dtype=torch.int16)
    entropy_cuda.decode(symbols, contexts, frequencies, sizes, sizes.repeat(32), words)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros", torch.ones)
        entropy_cuda.histogram(symbols, contexts, tables)
    assert assembly.keys() == {"_encode", "_move", "_decode", "_count"}


@pytest.mark.parametrize("columns", [False, True])
def test_scales_of_matrices_compile_and_contract_nothing(columns: bool, assembly: dict[str, str]) -> None:
    from comm_compress.kernels.quantisers.matrix_scales import triton as matrix_scales_cuda

    matrices = matrices_of((Shape(40, 640, columns), Shape(1, 100, columns=False)), CPU)
    x, codes = torch.zeros(25_700), torch.zeros(25_700, dtype=torch.int8)
    octets = torch.zeros(matrices.num_rows + matrices.num_columns, dtype=torch.uint8)
    written = codes, octets, torch.zeros(4)
    beside, limits = Quantiser(1.0, 0.5, 0.25, 0.01, keep=False), torch.ones(matrices.num_rows, dtype=torch.float64)
    matrix_scales_cuda.encode(x, matrices, Quantiser(0.25, 0.5), *written)
    for most in (None, limits):
        matrix_scales_cuda.encode(x, matrices, beside, *written, x, most)
    matrix_scales_cuda.add_noise(x, torch.ones(matrices.num_rows), (1, 2), matrices)
    matrix_scales_cuda.add(*written, x, matrices)
    of_columns = {"_sum_columns", "_mean_columns"} if columns else set()
    names = {"_mean_rows", "_add_noise", "_encode_scales", "_decode_scales", "_quantise", "_add_decoded"}
    assert assembly.keys() == names | of_columns
    for code in assembly.values():
        as_written(code)


@pytest.mark.parametrize("n", [20_000, 300_000])
def test_entropy_coded_streams_compile(n: int, assembly: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in a loop over groups but what has to be: no division, no scan over lanes, no barrier."""
    from comm_compress.kernels.coding.streams import cpu as streams_cpu, triton as streams_cuda

    monkeypatch.setattr(rans_stream, "GROUPS", {"cpu": 512})
    symbols = torch.zeros(n, dtype=torch.uint8)
    symbols[::100] = torch.arange(len(symbols[::100])).to(torch.uint8)
    out = torch.empty(n, dtype=torch.uint8)
    with monkeypatch.context() as patched:
        counts = np.bincount(symbols, minlength=256)
        patched.setattr(streams_cuda, "histogram", lambda *_: counts[None])
        streams_cuda.encode(symbols, out, fresh)
    size = streams_cpu.encode(symbols, out, fresh)
    assert 0 < size < n
    streams_cuda.decode(out[:size], symbols, fresh)
    assert assembly.keys() == {"_encode", "_move", "_put_literals", "_decode", "_take_literals"}
    for name in ("_encode", "_decode"):
        assert not re.search(r"\b(div|rem)\.|bar\.sync", assembly[name])
        assert "popc.b32" in assembly[name]
        assert n < rans_stream.MANY or "redux.sync.add" in assembly[name]
