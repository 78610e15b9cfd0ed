"""Packing a cache-sized piece of small codes into bytes and back, inside other numba kernels.

A piece is an int8 array whose size is a multiple of 8. Widths of 1, 2 and 4 bits work on words that hold 8, 4 and 2
codes, which LLVM turns into vectors; others take eight codes, which fill whole bytes, at a time.
"""

from __future__ import annotations

import numpy as np

from comm_compress.kernels.numba_tools import Array, compiled

LOW_BITS = np.uint64(0x0101010101010101)  # the lowest bit of each byte
GATHER_BITS = np.uint64(0x0102040810204080)  # times a word of low bits: bit j of the top byte is that of byte j
SPREAD_BITS = np.uint64(0x8040201008040201)  # bit j of byte j
SEVEN_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)


@compiled
def pack_piece(piece: Array, length: int, bits: int, packed: Array) -> None:
    """The low ``bits`` of the first ``length`` codes, to the first bytes of ``packed`` (as `bits_reference.pack`)."""
    piece[length : (length + 7) // 8 * 8] = 0
    size = (length * bits + 7) // 8
    if bits == 8:
        _copy(piece.view(np.uint8)[:size], packed[:size])
    elif bits == 4:
        _pack_4(piece.view(np.uint16)[:size], packed[:size])
    elif bits == 2:
        _pack_2(piece.view(np.uint32)[:size], packed[:size])
    elif bits == 1:
        _pack_1(piece.view(np.uint64)[:size], packed[:size])
    else:
        _pack_any(piece, size, bits, packed)


@compiled
def unpack_piece(packed: Array, length: int, bits: int, piece: Array) -> None:
    """``length`` codes from their bytes: two's complement, or -1 and 1 with one bit."""
    size = (length * bits + 7) // 8
    if bits == 8:
        _copy(packed[:size], piece.view(np.uint8)[:size])
    elif bits == 4:
        _unpack_4(packed[:size], piece.view(np.uint16)[:size])
    elif bits == 2:
        _unpack_2(packed[:size], piece.view(np.uint32)[:size])
    elif bits == 1:
        _unpack_1(packed[:size], piece.view(np.uint64)[:size])
    else:
        _unpack_any(packed, size, bits, piece)
    if bits == 1:
        _to_signs(piece[:length])
    elif bits < 8:
        _extend_sign(piece[:length], np.int8(1 << (bits - 1)))


@compiled
def _copy(source: Array, target: Array) -> None:
    for i in range(target.size):
        target[i] = source[i]


@compiled
def _pack_4(pairs: Array, packed: Array) -> None:
    for i in range(packed.size):
        packed[i] = np.uint8((pairs[i] & np.uint16(15)) | ((pairs[i] >> np.uint16(4)) & np.uint16(240)))


@compiled
def _unpack_4(packed: Array, pairs: Array) -> None:
    for i in range(packed.size):
        byte = np.uint16(packed[i])
        pairs[i] = np.uint16((byte & np.uint16(15)) | ((byte << np.uint16(4)) & np.uint16(0x0F00)))


@compiled
def _pack_2(fours: Array, packed: Array) -> None:
    for i in range(packed.size):
        word = np.uint32(fours[i])
        low = (word & np.uint32(3)) | ((word >> np.uint32(6)) & np.uint32(12))
        packed[i] = np.uint8(
            low | ((word >> np.uint32(12)) & np.uint32(48)) | ((word >> np.uint32(18)) & np.uint32(192))
        )


@compiled
def _unpack_2(packed: Array, fours: Array) -> None:
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        low = (byte & np.uint32(3)) | ((byte << np.uint32(6)) & np.uint32(3 << 8))
        high = ((byte << np.uint32(12)) & np.uint32(3 << 16)) | ((byte << np.uint32(18)) & np.uint32(3 << 24))
        fours[i] = np.uint32(low | high)


@compiled
def _pack_1(eights: Array, packed: Array) -> None:
    for i in range(packed.size):
        packed[i] = np.uint8(((eights[i] & LOW_BITS) * GATHER_BITS) >> np.uint64(56))


@compiled
def _unpack_1(packed: Array, eights: Array) -> None:
    for i in range(packed.size):
        spread = (np.uint64(packed[i]) * LOW_BITS) & SPREAD_BITS
        eights[i] = ((spread + SEVEN_BITS) >> np.uint64(7)) & LOW_BITS


@compiled
def _pack_any(piece: Array, size: int, bits: int, packed: Array) -> None:
    mask, place = np.uint64((1 << bits) - 1), 0
    for start in range(0, piece.size, 8):
        if place >= size:
            return
        word = np.uint64(0)
        for i in range(8):
            word |= (np.uint64(piece[start + i]) & mask) << np.uint64(i * bits)
        for _ in range(min(bits, size - place)):
            packed[place] = np.uint8(word & np.uint64(255))
            word >>= np.uint64(8)
            place += 1


@compiled
def _unpack_any(packed: Array, size: int, bits: int, piece: Array) -> None:
    mask, place = np.uint64((1 << bits) - 1), 0
    for start in range(0, piece.size, 8):
        if place >= size:
            return
        word = np.uint64(0)
        for i in range(min(bits, size - place)):
            word |= np.uint64(packed[place + i]) << np.uint64(8 * i)
        place += bits
        for i in range(8):
            piece[start + i] = np.int8((word >> np.uint64(i * bits)) & mask)


@compiled
def _to_signs(piece: Array) -> None:
    for i in range(piece.size):
        piece[i] = np.int8(2 * piece[i] - 1)


@compiled
def _extend_sign(piece: Array, sign: np.int8) -> None:
    for i in range(piece.size):
        piece[i] = np.int8((piece[i] ^ sign) - sign)
