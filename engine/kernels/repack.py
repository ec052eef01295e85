"""From the blocks of a model file straight to the layout of packed matrices: how weights are made ready for decode.

One kernel for each pair of file type and packed form reads every byte once and writes every byte once; threads take
blocks of 32 rows. A file's block is first turned over, so that the same byte of 32 rows stands side by side: scales,
half codes and fifth bits then all unpack with the same operation on 32 rows, and nothing crosses lanes any more.

What it gives equals `codes`, merged and packed by torch, up to two choices. The form follows from the types alone, not
from the codes that happen to occur. And the `norm` is a power of two: 1 where all scales are float16 in the file, which
then stay as they are, else SMALL_NORM. Knows nothing of tensor names; tensors and their order are the caller's matter.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from engine.gguf.blocks import IQ4_VALUES
from engine.gguf.types import GGMLType
from engine.kernels import jit
from engine.kernels.packed import BLOCK_ROWS, CodeBits, PackedMatrix

# Brings computed scales into the middle of float16's range: up to 63 at the top, full precision down to 6e-8.
SMALL_NORM = 2.0**-10

# Bytes of a row that are turned over together; no file block is shorter.
_PIECE = 16

# Bytes of memory that come together; where they are fewer on some processor, some are only not asked for early.
_LINE = 64


_INFINITE_HALF = 0x7C00


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some rows of a matrix as they are in the file: `rows` uint8 [N, bytes of a row] of type `kind`, at any address.

    `order` int64 [N'] picks the rows, all of them as they come where it is None.
    """

    rows: Tensor
    kind: GGMLType
    order: Tensor | None = None

    @property
    def n_rows(self) -> int:
        return len(self.rows if self.order is None else self.order)

    @property
    def n_cols(self) -> int:
        return self.rows.shape[1] // self.kind.type_size * self.kind.block_size


@dataclass(frozen=True)
class _Form:
    """A packed form: what a stored code is, and whether scales are the file's own float16."""

    bits: CodeBits
    group: int
    offset: int
    has_minima: bool
    as_stored: bool

    @property
    def norm(self) -> float:
        return 1.0 if self.as_stored else SMALL_NORM


# Bytes of packed matrices that a thread fills without Python between.
_AT_ONCE_BYTES = 32 << 20


class Repacking:
    """Matrices to be repacked: gathered with `add`, which is Python's work, then filled with `run`, which is not.

    `empty(n)` gives the memory of the results, uint8 [n].
    """

    def __init__(
        self, empty: Callable[[int], Tensor] = lambda n_bytes: torch.empty(n_bytes, dtype=torch.uint8)
    ) -> None:
        self._empty = empty
        self._waiting: list[_Call] = []

    def add(
        self, parts: Sequence[Part], *, interleave: bool = False, on_filled: Callable[[], None] = lambda: None
    ) -> PackedMatrix | None:
        """The parts one below the other, in the narrowest form that holds all their types; filled by the next `run`,
        which then calls `on_filled()`.

        With `interleave` blocks of 32 rows of exactly two equal parts alternate. None where this cannot be done, and
        the caller has to go through `codes` and `pack`: no kernels here, a type without a rule, or parts of different
        types that do not end with a block of 32 rows.
        """
        if not jit.available() or not parts or not all(_fits(part, parts[0]) for part in parts):
            return None
        form = _form([part.kind for part in parts])
        n_rows, n_cols = sum(part.n_rows for part in parts), parts[0].n_cols
        n_blocks = -(-n_rows // BLOCK_ROWS)
        runs = _interleaved(parts) if interleave else _stacked(parts)
        if runs is None or not n_blocks:
            return None
        n_groups = n_blocks * (n_cols // form.group)
        codes = self._empty(n_groups * form.bits.group_bytes(form.group))
        scales = self._empty(n_groups * BLOCK_ROWS * 2)
        minima = self._empty(n_groups * BLOCK_ROWS * 2) if form.has_minima else None
        for number, run in enumerate(runs):
            largest = torch.zeros(1, dtype=torch.int64)
            fields = (
                run.addresses.data_ptr(),
                codes.data_ptr(),
                scales.data_ptr(),
                minima.data_ptr() if minima is not None else 0,
                n_cols // run.kind.block_size,
                len(run.addresses) // BLOCK_ROWS,
                run.first_block,
                run.stride,
                largest.data_ptr(),
            )
            self._waiting.append(
                _Call(
                    kernel=_kernel(run.kind, form),
                    fields=array("q", fields),
                    largest=largest,
                    n_bytes=len(codes),
                    on_filled=on_filled if number == len(runs) - 1 else None,
                    kept=(run, parts, codes, scales, minima),
                )
            )
        by_group = (n_blocks, n_cols // form.group, -1)
        return PackedMatrix(
            bits=form.bits,
            group=form.group,
            offset=form.offset,
            codes=codes.view(torch.int8 if form.bits is CodeBits.B8 else torch.uint8).view(by_group),
            scales=scales.view(torch.float16).view(by_group),
            minima=minima.view(torch.float16).view(by_group) if minima is not None else None,
            norm=form.norm,
            n_rows=n_rows,
            n_cols=n_cols,
        )

    def run(self) -> bool:
        """Fill all that was added since the last time; False when one of the matrices has scales too large for float16
        by its `norm`, and its contents cannot be used."""
        waiting, self._waiting = self._waiting, []
        # Matrix by matrix on threads of their own, large ones first: a team of OpenMP's would wait for its slowest.
        waiting.sort(key=lambda call: call.n_bytes, reverse=True)
        slices: list[list[_Call]] = []
        room = 0
        for call in waiting:
            if call.n_bytes > room:
                slices.append([])
                room = _AT_ONCE_BYTES
            slices[-1].append(call)
            room -= call.n_bytes
        pool = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="repack")
        try:
            for calls, _ in zip(slices, pool.map(_run_slice, slices), strict=True):
                if any(int(call.largest) >= _INFINITE_HALF for call in calls):
                    return False
                for call in calls:
                    if call.on_filled is not None:
                        call.on_filled()
        finally:
            pool.shutdown(cancel_futures=True)
        return True


def _run_slice(calls: list[_Call]) -> None:
    jit.run_all([(call.kernel, call.fields) for call in calls], 1)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One call of a kernel, and what its addresses point to."""

    kernel: jit.Kernel
    fields: array[int]
    largest: Tensor
    n_bytes: int
    on_filled: Callable[[], None] | None
    kept: object


def _fits(part: Part, first: Part) -> bool:
    rows = part.rows
    return (
        part.kind in _SOURCES
        and rows.device.type == "cpu"
        and rows.stride(1) == 1
        and rows.shape[1] > 0
        and rows.shape[1] % part.kind.type_size == 0
        and part.n_cols == first.n_cols
    )


def _form(kinds: Sequence[GGMLType]) -> _Form:
    """The narrowest form that holds the codes of all `kinds`."""
    sources = [_SOURCES[kind] for kind in kinds]
    low, high = min(source.low for source in sources), max(source.high for source in sources)
    bits, offset = CodeBits.B8, 0
    has_minima = any(source.has_minima for source in sources)
    if low >= 0 and high < 32:
        bits = CodeBits.B4 if high < 16 else CodeBits.B5
    elif low >= -16 and high < 16 and not has_minima:
        bits, offset = CodeBits.B5, -16
    return _Form(
        bits=bits,
        group=min(source.group for source in sources),
        offset=offset,
        has_minima=has_minima,
        as_stored=all(source.as_stored for source in sources),
    )


@dataclass(frozen=True)
class _Run:
    """Blocks of rows of one type: the address of every row, and which blocks of the result they become."""

    kind: GGMLType
    addresses: Tensor
    first_block: int
    stride: int
    keeps: tuple[Tensor, ...] = ()
    """What the addresses point to."""


def _addresses(part: Part) -> Tensor:
    start, step = part.rows.data_ptr(), part.rows.stride(0)
    if part.order is None:
        return torch.arange(start, start + part.n_rows * step, step)
    return part.order.cpu().long() * step + start


def _stacked(parts: Sequence[Part]) -> list[_Run] | None:
    """Parts of one type after each other are one run; all runs but the last are whole blocks."""
    runs: list[_Run] = []
    n_before = 0
    for kind, group in groupby(parts, lambda part: part.kind):
        alike = list(group)
        if n_before % BLOCK_ROWS:
            return None
        addresses = [_addresses(part) for part in alike]
        keeps: tuple[Tensor, ...] = ()
        n_rows = sum(len(part) for part in addresses)
        if n_rows % BLOCK_ROWS:
            # Rows of zeros have zero scales.
            blank = torch.zeros(alike[0].rows.shape[1], dtype=torch.uint8)
            addresses.append(torch.full((-n_rows % BLOCK_ROWS,), blank.data_ptr()))
            keeps = (blank,)
        joined = addresses[0] if len(addresses) == 1 else torch.cat(addresses)
        runs.append(_Run(kind, joined, n_before // BLOCK_ROWS, 1, keeps))
        n_before += n_rows
    return runs


def _interleaved(parts: Sequence[Part]) -> list[_Run] | None:
    if len(parts) != 2 or parts[0].n_rows != parts[1].n_rows or parts[0].n_rows % BLOCK_ROWS:
        return None
    addresses = [_addresses(part) for part in parts]
    if parts[0].kind is parts[1].kind:
        both = torch.stack([each.view(-1, BLOCK_ROWS) for each in addresses], dim=1)
        return [_Run(parts[0].kind, both.flatten(), 0, 1)]
    return [
        _Run(part.kind, each, place, 2)
        for place, (part, each) in enumerate(zip(parts, addresses, strict=True))
    ]


@dataclass(frozen=True, kw_only=True)
class _Source:
    """How a type unpacks. Codes as stored lie in [low, high] after `bias` is added to the unsigned ones in the file.

    `unpack(w)` writes all codes of a block, `scales(w)` all scales, and minima where the type has them. `as_stored`:
    they are float16 in the file.
    """

    low: int
    high: int
    group: int
    has_minima: bool
    as_stored: bool
    unpack: Callable[[_Writer], None]
    scales: Callable[[_Writer], None]
    bias: int = 0


class _Writer:
    """Emits the unpacking of one turned block: `column(i)` is byte i of 32 rows."""

    def __init__(self, k: jit.Builder, source: _Source, form: _Form, kind: GGMLType) -> None:
        self.k = k
        self.source, self.form, self.kind = source, form, kind
        ir = k.ir
        self.v8, self.v16, self.v32 = (ir.VectorType(kind, BLOCK_ROWS) for kind in (k.i8, k.i16, k.i32))
        self.vhalf, self.vfloat = ir.VectorType(k.f16, BLOCK_ROWS), ir.VectorType(k.f32, BLOCK_ROWS)
        self.turned = self._room(kind.type_size * BLOCK_ROWS)
        self.codes_room = None if form.bits is CodeBits.B8 else self._room(kind.block_size * BLOCK_ROWS)
        self.largest = self._room(2 * BLOCK_ROWS)
        k.store(ir.Constant(self.v16, [0] * BLOCK_ROWS), self.largest)
        # Set for each block.
        self.codes: Any = None
        self.group: Any = None

    def _room(self, n_bytes: int) -> Any:
        room = self.k.b.alloca(self.k.ir.ArrayType(self.k.i8, n_bytes))
        room.align = 64
        return self.k.b.ptrtoint(room, self.k.i64)

    def bytes_of(self, value: int) -> Any:
        return self.k.ir.Constant(self.v8, [value & 0xFF] * BLOCK_ROWS)

    def splat(self, scalar: Any) -> Any:
        ir, b = self.k.ir, self.k.b
        kind = ir.VectorType(scalar.type, BLOCK_ROWS)
        empty = ir.Constant(kind, ir.Undefined)
        first = b.insert_element(empty, scalar, ir.Constant(self.k.i32, 0))
        return b.shuffle_vector(first, empty, ir.Constant(self.v32, [0] * BLOCK_ROWS))

    def loop(self, n: int, step: Callable[[Any], None]) -> None:
        def once(index: Any, _: list[Any]) -> list[Any]:
            step(index)
            return []

        self.k.loop(self.k.c(0), self.k.c(n), [], once)

    def column(self, index: Any, offset: int = 0) -> Any:
        k = self.k
        if isinstance(index, int):
            return k.load(self.turned, self.v8, (index + offset) * BLOCK_ROWS)
        return k.load(k.b.add(self.turned, k.b.mul(index, k.c(BLOCK_ROWS))), self.v8, offset * BLOCK_ROWS)

    def turn(self, rows: Any, offset: Any) -> None:
        """Bring the file's blocks at `offset` of the 32 `rows` (addresses of the rows' addresses) to `turned`."""
        k, b = self.k, self.k.b
        size = self.kind.type_size
        # The last piece overlaps the one before it rather than reach beyond the block.
        pieces = -(-size // _PIECE)
        v16bytes = k.ir.VectorType(k.i8, _PIECE)
        joined = k.ir.Constant(self.v32, list(range(2 * _PIECE)))

        def piece(index: Any) -> None:
            start = k.smaller(b.mul(index, k.c(_PIECE)), k.c(size - _PIECE))
            at = b.add(offset, start)
            halves = [k.load(b.add(k.load(rows, k.i64, 8 * row), at), v16bytes) for row in range(BLOCK_ROWS)]
            vectors = [b.shuffle_vector(halves[row], halves[row + 16], joined) for row in range(16)]
            target = b.add(self.turned, b.mul(start, k.c(BLOCK_ROWS)))
            for column, vector in enumerate(self._transposed(vectors)):
                k.store(vector, b.add(target, k.c(column * BLOCK_ROWS)))

        self.loop(pieces, piece)

    def _transposed(self, vectors: list[Any]) -> list[Any]:
        """Two 16 by 16 tables of bytes, one in each half of the 16 vectors."""
        lower = [half + lane // 2 + BLOCK_ROWS * (lane % 2) for half in (0, 16) for lane in range(16)]
        masks = [self.k.ir.Constant(self.v32, [lane + shift for lane in lower]) for shift in (0, 8)]
        for _ in range(4):
            vectors = [
                self.k.b.shuffle_vector(vectors[i // 2], vectors[i // 2 + 8], masks[i % 2]) for i in range(16)
            ]
        return vectors

    def fetch(self, rows: Any, offset: Any) -> None:
        """Ask for the blocks at `offset` of 32 `rows` that are needed soon: memory is slower than all else here."""
        k, b = self.k, self.k.b
        pointer = k.i8.as_pointer()
        # A read, kept in the second level of cache, of data.
        hints = [k.ir.Constant(k.i32, value) for value in (0, 2, 1)]

        def one_row(index: Any) -> None:
            at = b.add(k.load(b.add(rows, b.mul(index, k.c(8))), k.i64), offset)
            for line in range(0, self.kind.type_size, _LINE):
                address = b.inttoptr(b.add(at, k.c(line)), pointer)
                k.intrinsic("llvm.prefetch.p0", k.ir.VoidType(), address, *hints)

        self.loop(BLOCK_ROWS, one_row)

    # Codes

    def put(self, index: Any, code: Any, offset: int = 0) -> None:
        """Store the unsigned code of 32 rows for column `index` + `offset` of the block."""
        k = self.k
        bias = self.source.bias - self.form.offset
        if bias:
            code = k.b.add(code, self.bytes_of(bias))
        k.store(code, k.b.add(self.codes, k.b.add(k.b.mul(index, k.c(BLOCK_ROWS)), k.c(offset * BLOCK_ROWS))))

    def low(self, value: Any) -> Any:
        return self.k.b.and_(value, self.bytes_of(15))

    def high(self, value: Any) -> Any:
        return self.k.b.lshr(value, self.bytes_of(4))

    def where_bit(self, value: Any, bit: Any, result: int) -> Any:
        """`result` where `bit` (a number below 8) of `value` is set, else 0."""
        k, b = self.k, self.k.b
        mask = self.splat(b.shl(k.ir.Constant(k.i8, 1), b.trunc(bit, k.i8)))
        zero = self.bytes_of(0)
        return b.select(b.icmp_unsigned("!=", b.and_(value, mask), zero), self.bytes_of(result), zero)

    def pair_up(self, out: Any) -> None:
        """Write the collected codes to `out` in the form of 4 or 5 bits."""
        k, b, form = self.k, self.k.b, self.form
        half = form.group // 2

        def pair(index: Any) -> None:
            # Pairs are numbered through; group g's start at column 2 g half.
            column = b.add(index, b.and_(index, k.c(~(half - 1))))
            at = b.add(self.codes, b.mul(column, k.c(BLOCK_ROWS)))
            lower = k.load(at, self.v8)
            upper = k.load(at, self.v8, half * BLOCK_ROWS)
            target = b.add(out, b.mul(index, k.c(form.bits.pair_bytes)))
            k.store(b.or_(self.low(lower), b.shl(upper, self.bytes_of(4))), target)
            if form.bits is CodeBits.B5:
                for place, codes in enumerate((lower, upper)):
                    fifth = b.icmp_unsigned("!=", b.and_(codes, self.bytes_of(16)), self.bytes_of(0))
                    k.store(b.bitcast(fifth, k.i32), b.add(target, k.c(BLOCK_ROWS + 4 * place)))

        self.loop(self.kind.block_size // 2, pair)

    # Scales

    def half_bits(self, byte: int) -> Any:
        """The float16 at `byte` of the block as int16."""
        b = self.k.b
        low, high = (b.zext(self.column(byte + i), self.v16) for i in range(2))
        return b.or_(low, b.shl(high, self.k.ir.Constant(self.v16, [8] * BLOCK_ROWS)))

    def half(self, byte: int) -> Any:
        """The float16 at `byte` of the block, as float32."""
        return self.k.b.fpext(self.k.b.bitcast(self.half_bits(byte), self.vhalf), self.vfloat)

    def number(self, value: Any, *, signed: bool = False) -> Any:
        """32 bytes as float32."""
        convert = self.k.b.sitofp if signed else self.k.b.uitofp
        return convert(value, self.vfloat)

    def factor(self, value: float) -> Any:
        return self.k.ir.Constant(self.vfloat, [value] * BLOCK_ROWS)

    def put_stored(self, name: str, byte: int) -> None:
        """The float16 at `byte` is the scale (or minimum) of the block's one group."""
        if self.form.as_stored:
            self._put_bits(name, self.k.c(0), self.half_bits(byte))
        else:
            self.put_value(name, self.k.c(0), self.half(byte))

    def put_value(self, name: str, group: Any, value: Any) -> None:
        """Round float32 values to the scale (or minimum) of `group` of the block."""
        k, b = self.k, self.k.b
        if self.form.norm != 1.0:
            value = b.fmul(value, self.factor(1.0 / self.form.norm))
        bits = b.bitcast(b.fptrunc(value, self.vhalf), self.v16)
        size = b.and_(bits, k.ir.Constant(self.v16, [0x7FFF] * BLOCK_ROWS))
        before = k.load(self.largest, self.v16)
        k.store(b.select(b.icmp_unsigned(">", size, before), size, before), self.largest)
        self._put_bits(name, group, bits)

    def _put_bits(self, name: str, group: Any, bits: Any) -> None:
        """Store float16 for a group of the file's, which may be several of the form's."""
        k, b = self.k, self.k.b
        repeats = self.source.group // self.form.group
        place = b.add(self.group, b.mul(group, k.c(repeats)))
        at = b.add(k.field(name), b.mul(place, k.c(2 * BLOCK_ROWS)))
        for repeat in range(repeats):
            k.store(bits, b.add(at, k.c(2 * BLOCK_ROWS * repeat)))


def _halves(first: int, fifths: int | None = None) -> Callable[[_Writer], None]:
    """Blocks of 32: 16 bytes from `first`, column j beside column j + 16; fifth bits in 4 bytes from `fifths`."""

    def unpack(w: _Writer) -> None:
        def pair(index: Any) -> None:
            value = w.column(index, first)
            codes = [w.low(value), w.high(value)]
            if fifths is not None:
                b = w.k.b
                byte, bit = b.lshr(index, w.k.c(3)), b.and_(index, w.k.c(7))
                for upper in range(2):
                    fifth = w.where_bit(w.column(byte, fifths + 2 * upper), bit, 16)
                    codes[upper] = b.or_(codes[upper], fifth)
            w.put(index, codes[0])
            w.put(index, codes[1], 16)

        w.loop(16, pair)

    return unpack


def _whole_bytes(first: int) -> Callable[[_Writer], None]:
    def unpack(w: _Writer) -> None:
        w.loop(w.kind.block_size, lambda index: w.put(index, w.column(index, first)))

    return unpack


def _k_halves(first: int, fifths: int | None = None) -> Callable[[_Writer], None]:
    """Blocks of 256: 4 times 32 bytes, column j of one group beside column j of the next; byte j from `fifths` holds
    the fifth bits of column j of all eight groups."""

    def unpack(w: _Writer) -> None:
        def pair(index: Any) -> None:
            b, c = w.k.b, w.k.c
            value = w.column(index, first)
            codes = [w.low(value), w.high(value)]
            if fifths is not None:
                bits = w.column(b.and_(index, c(31)), fifths)
                lower = b.shl(b.lshr(index, c(5)), c(1))
                for upper in range(2):
                    fifth = w.where_bit(bits, b.add(lower, c(upper)), 16)
                    codes[upper] = b.or_(codes[upper], fifth)
            column = b.add(index, b.and_(index, c(~31)))
            w.put(column, codes[0])
            w.put(column, codes[1], 32)

        w.loop(128, pair)

    return unpack


def _q6_k_codes(w: _Writer) -> None:
    """Twice 64 bytes of halves, columns l and l + 64 of 128 beside each other; then twice 32 bytes with two more bits
    of columns j, j + 32, j + 64 and j + 96."""

    def pair(index: Any) -> None:
        b, c = w.k.b, w.k.c
        value = w.column(index)
        more = w.column(b.add(b.and_(index, c(31)), b.lshr(b.and_(index, c(64)), c(1))), 128)
        shift = b.lshr(b.and_(index, c(32)), c(4))
        more = b.lshr(more, w.splat(b.trunc(shift, w.k.i8)))
        lower = b.shl(b.and_(more, w.bytes_of(0x03)), w.bytes_of(4))
        upper = b.and_(more, w.bytes_of(0x30))
        column = b.add(index, b.and_(index, c(64)))
        w.put(column, b.or_(w.low(value), lower))
        w.put(column, b.or_(w.high(value), upper), 64)

    w.loop(128, pair)


def _two_bits(first: int, thirds: int | None = None) -> Callable[[_Writer], None]:
    """Blocks of 256: twice 32 bytes with two bits of columns j, j + 32, j + 64 and j + 96; byte j from `thirds` holds
    the third bits of columns j, j + 32, ..., j + 224."""

    def unpack(w: _Writer) -> None:
        def four(index: Any) -> None:
            b, c = w.k.b, w.k.c
            value = w.column(index, first)
            half = b.lshr(index, c(5))
            place = b.and_(index, c(31))
            column = b.add(b.mul(half, c(128)), place)
            for field in range(4):
                code = b.and_(b.lshr(value, w.bytes_of(2 * field)), w.bytes_of(3))
                if thirds is not None:
                    bit = b.add(b.mul(half, c(4)), c(field))
                    code = b.or_(code, w.where_bit(w.column(place, thirds), bit, 4))
                w.put(column, code, 32 * field)

        w.loop(64, four)

    return unpack


def _looked_up(first: int) -> Callable[[_Writer], None]:
    """Groups of 32 as in `_halves`, of codes that stand for the 16 IQ4_VALUES."""

    def unpack(w: _Writer) -> None:
        b = w.k.b

        def value_of(code: Any) -> Any:
            choices = [w.bytes_of(value) for value in IQ4_VALUES]
            for bit in range(4):
                is_set = b.icmp_unsigned("!=", b.and_(code, w.bytes_of(1 << bit)), w.bytes_of(0))
                choices = [
                    b.select(is_set, odd, even) for even, odd in zip(choices[::2], choices[1::2], strict=True)
                ]
            return choices[0]

        def pair(index: Any) -> None:
            value = w.column(index, first)
            column = b.add(index, b.and_(index, w.k.c(~15)))
            w.put(column, value_of(w.low(value)))
            w.put(column, value_of(w.high(value)), 16)

        w.loop(w.kind.block_size // 2, pair)

    return unpack


def _one_scale(w: _Writer) -> None:
    w.put_stored("scales", 0)
    if w.form.has_minima:
        w.put_value("minima", w.k.c(0), w.factor(0.0))


def _scale_of_centred(w: _Writer) -> None:
    """Q4_0: codes from 0, so that all types of 4 bits look alike; -8 steps as the minimum."""
    w.put_stored("scales", 0)
    w.put_value("minima", w.k.c(0), w.k.b.fmul(w.half(0), w.factor(-8.0)))


def _scale_and_minimum(w: _Writer) -> None:
    w.put_stored("scales", 0)
    w.put_stored("minima", 2)


def _six_bit_scales(w: _Writer) -> None:
    """Eight scales and minima of 6 bits in 12 bytes: those of groups 0 to 3 in 4 bytes each, whose upper two bits go
    with the halves in the last 4 bytes to groups 4 to 7."""
    b, c = w.k.b, w.k.c
    scale, minimum = w.half(0), b.fmul(w.half(2), w.factor(-1.0))

    def two_groups(index: Any) -> None:
        rest = w.column(index, 12)
        for name, first, half, unit in (
            ("scales", 4, w.low(rest), scale),
            ("minima", 8, w.high(rest), minimum),
        ):
            value = w.column(index, first)
            low = b.and_(value, w.bytes_of(63))
            high = b.or_(half, b.and_(b.lshr(value, w.bytes_of(2)), w.bytes_of(0x30)))
            w.put_value(name, index, b.fmul(w.number(low), unit))
            w.put_value(name, b.add(index, c(4)), b.fmul(w.number(high), unit))

    w.loop(4, two_groups)


def _no_minima(w: _Writer, group: Any) -> None:
    if w.form.has_minima:
        w.put_value("minima", group, w.factor(0.0))


def _q6_k_scales(w: _Writer) -> None:
    unit = w.half(208)

    def one(index: Any) -> None:
        w.put_value("scales", index, w.k.b.fmul(w.number(w.column(index, 192), signed=True), unit))
        _no_minima(w, index)

    w.loop(16, one)


def _q2_k_scales(w: _Writer) -> None:
    b = w.k.b
    scale, minimum = w.half(80), b.fmul(w.half(82), w.factor(-1.0))

    def one(index: Any) -> None:
        value = w.column(index)
        w.put_value("scales", index, b.fmul(w.number(w.low(value)), scale))
        w.put_value("minima", index, b.fmul(w.number(w.high(value)), minimum))

    w.loop(16, one)


def _q3_k_scales(w: _Writer) -> None:
    """Sixteen scales of 6 bits less 32: halves in 8 bytes, low ones first; two more bits, for groups g, g + 4, g + 8
    and g + 12, in byte g of the next 4."""
    b, c = w.k.b, w.k.c
    unit = w.half(108)

    def four(index: Any) -> None:
        more = w.column(index, 104)
        for field in range(4):
            half = w.column(index, 96 + 4 * (field % 2))
            half = w.low(half) if field < 2 else w.high(half)
            top = b.shl(b.and_(b.lshr(more, w.bytes_of(2 * field)), w.bytes_of(3)), w.bytes_of(4))
            value = b.sub(b.or_(half, top), w.bytes_of(32))
            group = b.add(index, c(4 * field))
            w.put_value("scales", group, b.fmul(w.number(value, signed=True), unit))
            _no_minima(w, group)

    w.loop(4, four)


def _iq4_xs_scales(w: _Writer) -> None:
    """Eight scales of 6 bits less 32: halves of groups 2 i and 2 i + 1 in byte 4 + i, upper bits in bytes 2 and 3."""
    b = w.k.b
    unit = w.half(0)
    for group in range(8):
        halves = w.column(4 + group // 2)
        half = w.high(halves) if group % 2 else w.low(halves)
        more = b.lshr(w.column(2 + group // 4), w.bytes_of(2 * (group % 4)))
        top = b.shl(b.and_(more, w.bytes_of(3)), w.bytes_of(4))
        value = b.sub(b.or_(half, top), w.bytes_of(32))
        w.put_value("scales", w.k.c(group), b.fmul(w.number(value, signed=True), unit))
        _no_minima(w, w.k.c(group))


_SOURCES: dict[GGMLType, _Source] = {
    GGMLType.Q4_0: _Source(
        low=0,
        high=15,
        group=32,
        has_minima=True,
        as_stored=True,
        unpack=_halves(2),
        scales=_scale_of_centred,
    ),
    GGMLType.Q4_1: _Source(
        low=0,
        high=15,
        group=32,
        has_minima=True,
        as_stored=True,
        unpack=_halves(4),
        scales=_scale_and_minimum,
    ),
    GGMLType.Q5_0: _Source(
        low=-16,
        high=15,
        group=32,
        has_minima=False,
        as_stored=True,
        unpack=_halves(6, 2),
        scales=_one_scale,
        bias=-16,
    ),
    GGMLType.Q5_1: _Source(
        low=0,
        high=31,
        group=32,
        has_minima=True,
        as_stored=True,
        unpack=_halves(8, 4),
        scales=_scale_and_minimum,
    ),
    GGMLType.Q8_0: _Source(
        low=-128,
        high=127,
        group=32,
        has_minima=False,
        as_stored=True,
        unpack=_whole_bytes(2),
        scales=_one_scale,
    ),
    GGMLType.Q2_K: _Source(
        low=0,
        high=3,
        group=16,
        has_minima=True,
        as_stored=False,
        unpack=_two_bits(16),
        scales=_q2_k_scales,
    ),
    GGMLType.Q3_K: _Source(
        low=-4,
        high=3,
        group=16,
        has_minima=False,
        as_stored=False,
        unpack=_two_bits(32, 0),
        scales=_q3_k_scales,
        bias=-4,
    ),
    GGMLType.Q4_K: _Source(
        low=0,
        high=15,
        group=32,
        has_minima=True,
        as_stored=False,
        unpack=_k_halves(16),
        scales=_six_bit_scales,
    ),
    GGMLType.Q5_K: _Source(
        low=0,
        high=31,
        group=32,
        has_minima=True,
        as_stored=False,
        unpack=_k_halves(48, 16),
        scales=_six_bit_scales,
    ),
    GGMLType.Q6_K: _Source(
        low=-32,
        high=31,
        group=16,
        has_minima=False,
        as_stored=False,
        unpack=_q6_k_codes,
        scales=_q6_k_scales,
        bias=-32,
    ),
    GGMLType.IQ4_NL: _Source(
        low=-128,
        high=127,
        group=32,
        has_minima=False,
        as_stored=True,
        unpack=_looked_up(2),
        scales=_one_scale,
    ),
    GGMLType.IQ4_XS: _Source(
        low=-128,
        high=127,
        group=32,
        has_minima=False,
        as_stored=False,
        unpack=_looked_up(8),
        scales=_iq4_xs_scales,
    ),
}

_FIELDS = (
    "rows",
    "codes",
    "scales",
    "minima",
    "n_file_blocks",
    "n_blocks",
    "first_block",
    "stride",
    "largest",
)


@jit.kept
def _kernel(kind: GGMLType, form: _Form) -> jit.Kernel:
    """Repacks blocks of 32 rows of type `kind` to `form`."""
    k = jit.Builder(_FIELDS)
    b, c = k.b, k.c
    source = _SOURCES[kind]
    w = _Writer(k, source, form, kind)
    groups = kind.block_size // form.group
    code_bytes = groups * form.bits.group_bytes(form.group)

    def block_of_rows(index: Any, _: list[Any]) -> list[Any]:
        rows = b.add(k.field("rows"), b.mul(index, c(8 * BLOCK_ROWS)))
        last = b.sub(k.field("n_blocks"), c(1))
        following = b.add(k.field("rows"), b.mul(k.smaller(b.add(index, c(1)), last), c(8 * BLOCK_ROWS)))
        target = b.add(k.field("first_block"), b.mul(index, k.field("stride")))
        first = b.mul(target, k.field("n_file_blocks"))

        def file_block(number: Any, _: list[Any]) -> list[Any]:
            place = b.add(first, number)
            out = b.add(k.field("codes"), b.mul(place, c(code_bytes)))
            w.group = b.mul(place, c(groups))
            w.codes = out if w.codes_room is None else w.codes_room
            offset = b.mul(number, c(kind.type_size))
            w.fetch(following, offset)
            w.turn(rows, offset)
            source.unpack(w)
            if w.codes_room is not None:
                w.pair_up(out)
            source.scales(w)
            return []

        k.loop(c(0), k.field("n_file_blocks"), [], file_block)
        return []

    k.loop(*k.share(k.field("n_blocks")), [], block_of_rows)
    name = f"llvm.vector.reduce.umax.v{BLOCK_ROWS}i16"
    largest = b.zext(k.intrinsic(name, k.i16, k.load(w.largest, w.v16)), k.i64)
    k.store(largest, k.thread_slice("largest", c(8)))
    return k.compile()
