"""Compiling small CPU kernels at start-up: LLVM IR in, a callable out; no compiler is needed on the machine.

`llvmlite` ships LLVM in its wheel and turns a kernel of ours into machine code for this very processor in about
50 ms; on disk the code is kept for the next start, which then takes 1 ms. Work is spread with the OpenMP runtime that
torch has already loaded, so that a kernel and torch share one team of threads and never fight over the cores. Where
llvmlite or a usable OpenMP runtime is missing, `available()` is False and the callers use their torch reference. Knows
nothing of models or weights.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.errors import HostError
from engine.kernels import object_cache

# Every kernel is written for vectors of sixteen float32; LLVM splits them where registers are narrower.
LANES = 16

_OPENMP_NAMES = ("libgomp*.so*", "libomp*.so*", "libomp.dylib", "libiomp5.dylib")
_OPENMP_SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def available() -> bool:
    """Whether kernels can be compiled here. Never raises."""
    return _openmp() is not None


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """Torch's own OpenMP runtime with its symbols made known to LLVM; None where that cannot be had."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    lib = Path(torch.__file__).parent / "lib"
    candidates = [path for pattern in _OPENMP_NAMES for path in sorted(lib.glob(pattern))]
    # Linux wheels may keep the runtime beside the package, in `torch.libs`.
    candidates += sorted((lib.parent.parent / "torch.libs").glob("libgomp*.so*"))
    for path in candidates:
        try:
            runtime = ctypes.CDLL(str(path))
            addresses = {
                name: ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value for name in _OPENMP_SYMBOLS
            }
        except (OSError, AttributeError):
            continue
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for name, address in addresses.items():
            llvm.add_symbol(name, address)
        return runtime
    return None


def _need() -> None:
    """Make LLVM ready. Raises HostError where there are no kernels."""
    if _openmp() is None:
        raise HostError("kernels cannot be compiled here: llvmlite or torch's OpenMP runtime is missing")


@functools.cache
def has_cpu_feature(name: str) -> bool:
    """Whether kernels can be compiled here and may use LLVM's CPU feature `name`."""
    if not available():
        return False
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_features().get(name, False))


def _bfloat() -> Any:
    """LLVM's bfloat type, which llvmlite has no class for."""
    import llvmlite.ir as ir

    class BFloat(ir.Type):
        def _to_string(self) -> str:
            return "bfloat"

        def __eq__(self, other: object) -> bool:
            return type(other).__name__ == "BFloat"

        def __hash__(self) -> int:
            return hash("bfloat")

    return BFloat()


class Builder:
    """Emits one kernel: a function of `fields` 64-bit integers whose body runs once on every thread of a team.

    `emit(builder)` is called once; in it `field(name)` gives an argument and `share(total)` the [first, end) part of
    `total` equal pieces that belongs to the running thread.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        _need()
        import llvmlite.ir as ir

        self.ir = ir
        self.i64, self.i32, self.i16, self.i8 = (ir.IntType(n) for n in (64, 32, 16, 8))
        self.f32, self.f16 = ir.FloatType(), ir.HalfType()
        self.vf32 = ir.VectorType(self.f32, LANES)
        self.vf16 = ir.VectorType(self.f16, LANES)
        self.vi32 = ir.VectorType(self.i32, LANES)
        self.vi16 = ir.VectorType(self.i16, LANES)
        self.vi8 = ir.VectorType(self.i8, LANES)
        self.mask = ir.VectorType(ir.IntType(1), LANES)
        self.module = ir.Module("baton")
        pointer = self.i8.as_pointer()
        self._body = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [pointer]), "body")
        self._thread_num = ir.Function(self.module, ir.FunctionType(self.i32, []), "omp_get_thread_num")
        self._num_threads = ir.Function(self.module, ir.FunctionType(self.i32, []), "omp_get_num_threads")
        self._fields = fields
        self.b = ir.IRBuilder(self._body.append_basic_block("entry"))
        context = self.b.bitcast(self._body.args[0], self.i64.as_pointer())
        self._values = {
            name: self.b.load(self.b.gep(context, [self.c(index)])) for index, name in enumerate(fields)
        }

    def vector(self, kind: Any, n: int) -> Any:
        """The type of `n` values of type `kind` side by side."""
        return self.ir.VectorType(kind, n)

    def c(self, value: int) -> Any:
        return self.ir.Constant(self.i64, value)

    def ints(self, value: int) -> Any:
        return self.ir.Constant(self.vi32, [value] * LANES)

    def floats(self, value: float) -> Any:
        return self.ir.Constant(self.vf32, [float(value)] * LANES)

    def field(self, name: str) -> Any:
        return self._values[name]

    def field_float(self, name: str) -> Any:
        """A field that carries the 32 bits of a float; the caller passes `float_bits(value)`."""
        return self.b.bitcast(self.b.trunc(self._values[name], self.i32), self.f32)

    def share(self, total: Any) -> tuple[Any, Any]:
        b = self.b
        thread = b.zext(b.call(self._thread_num, []), self.i64)
        threads = b.zext(b.call(self._num_threads, []), self.i64)
        first = b.udiv(b.mul(thread, total), threads)
        return first, b.udiv(b.mul(b.add(thread, self.c(1)), total), threads)

    def thread_slice(self, name: str, n_bytes: Any) -> Any:
        """The address of the running thread's own `n_bytes` in the scratch memory that field `name` points to."""
        thread = self.b.zext(self.b.call(self._thread_num, []), self.i64)
        return self.b.add(self.field(name), self.b.mul(thread, n_bytes))

    def load(self, address: Any, kind: Any, offset: int = 0) -> Any:
        """A `kind` at `address` + `offset` bytes, aligned or not."""
        if offset:
            address = self.b.add(address, self.c(offset))
        value = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        value.align = 1
        return value

    def store(self, value: Any, address: Any) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer())).align = 1

    def splat(self, scalar: Any) -> Any:
        kind = self.ir.VectorType(scalar.type, LANES)
        empty = self.ir.Constant(kind, self.ir.Undefined)
        first = self.b.insert_element(empty, scalar, self.ir.Constant(self.i32, 0))
        return self.b.shuffle_vector(first, empty, self.ir.Constant(self.vi32, [0] * LANES))

    def dot_pairs(self, total: Any, first: Any, second: Any) -> Any:
        """`total` plus, by lane, the products of two pairs of bfloat16; needs the feature avx512bf16."""
        pairs = self.ir.VectorType(_bfloat(), 2 * LANES)
        first, second = self.b.bitcast(first, pairs), self.b.bitcast(second, pairs)
        return self.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", self.vf32, total, first, second)

    def dot_quads(self, total: Any, unsigned: Any, signed: Any) -> Any:
        """`total` int32 plus, by lane, the products of four bytes; needs the feature avx512vnni."""
        return self.intrinsic("llvm.x86.avx512.vpdpbusd.512", self.vi32, total, unsigned, signed)

    def bf16_bits(self, value: Any) -> Any:
        """The upper halves of float32 lanes, rounded to nearest even, as integers below 65536."""
        bits = self.b.bitcast(value, self.vi32)
        odd = self.b.and_(self.b.lshr(bits, self.ints(16)), self.ints(1))
        return self.b.lshr(self.b.add(bits, self.b.add(odd, self.ints(0x7FFF))), self.ints(16))

    def larger_lanes(self, first: Any, second: Any) -> Any:
        return self.intrinsic(f"llvm.maxnum.v{LANES}f32", self.vf32, first, second)

    def shuffle(self, first: Any, second: Any, lanes: list[int]) -> Any:
        """Lanes picked from `first` and, by numbers from its length on, from `second`, a vector of the same type."""
        picked = self.ir.Constant(self.vector(self.i32, len(lanes)), lanes)
        return self.b.shuffle_vector(first, second, picked)

    def join(self, first: Any, second: Any) -> Any:
        """One vector of twice the length."""
        return self.shuffle(first, second, list(range(2 * first.type.count)))

    def absolute(self, x: Any) -> Any:
        return self.intrinsic(f"llvm.fabs.v{LANES}f32", self.vf32, x)

    def nearest(self, x: Any) -> Any:
        """Whole numbers, halves to even."""
        return self.intrinsic(f"llvm.nearbyint.v{LANES}f32", self.vf32, x)

    def smaller(self, first: Any, second: Any) -> Any:
        """The smaller of two integers that are not negative."""
        return self.b.select(self.b.icmp_unsigned("<", first, second), first, second)

    def intrinsic(self, name: str, result: Any, *arguments: Any, flags: tuple[str, ...] = ()) -> Any:
        """Call the LLVM intrinsic `name`, declared from its arguments' types."""
        function = self.module.globals.get(name) or self.ir.Function(
            self.module, self.ir.FunctionType(result, [argument.type for argument in arguments]), name
        )
        return self.b.call(function, arguments, fastmath=flags)

    def fma(self, a: Any, x: Any, y: Any) -> Any:
        return self.intrinsic(f"llvm.fma.v{LANES}f32", self.vf32, a, x, y)

    def exp(self, x: Any) -> Any:
        """e to the x by lane, to about one part in ten million: 2^n times a polynomial in the remainder."""
        b = self.b
        x = self.intrinsic(f"llvm.maxnum.v{LANES}f32", self.vf32, x, self.floats(-87.0))
        x = self.intrinsic(f"llvm.minnum.v{LANES}f32", self.vf32, x, self.floats(88.0))
        power = b.fmul(x, self.floats(1.4426950408889634))
        power = self.nearest(power)
        # ln 2 in two pieces, so that the remainder keeps its low bits.
        rest = self.fma(power, self.floats(-0.693359375), x)
        rest = self.fma(power, self.floats(2.12194440e-4), rest)
        series = self.floats(1.9875691500e-4)
        for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
            series = self.fma(series, rest, self.floats(term))
        series = self.fma(series, b.fmul(rest, rest), b.fadd(rest, self.floats(1.0)))
        exponent = b.shl(b.add(b.fptosi(power, self.vi32), self.ints(127)), self.ints(23))
        return b.fmul(series, b.bitcast(exponent, self.vf32))

    def inverse_rms(self, x: Any, n: Any, eps: Any) -> Any:
        """1 / sqrt(mean of squares + `eps`) of the `n` float32 at address `x`, on all lanes; n a multiple of 16."""
        b, c = self.b, self.c

        def square(index: Any, total: list[Any]) -> list[Any]:
            value = self.load(b.add(x, b.mul(index, c(4 * LANES))), self.vf32)
            return [self.fma(value, value, total[0])]

        squares = self.sum_lanes(self.loop(c(0), b.udiv(n, c(LANES)), [self.floats(0)], square)[0])
        mean = b.fadd(b.fdiv(squares, b.uitofp(n, self.f32)), eps)
        root = self.intrinsic("llvm.sqrt.f32", self.f32, mean)
        return self.splat(b.fdiv(self.ir.Constant(self.f32, 1.0), root))

    def sum_lanes(self, vector: Any) -> Any:
        start = self.ir.Constant(self.f32, -0.0)
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        return self.intrinsic(name, self.f32, start, vector, flags=("reassoc",))

    def max_lanes(self, vector: Any) -> Any:
        return self.intrinsic(f"llvm.vector.reduce.fmax.v{LANES}f32", self.f32, vector)

    def loop(
        self, first: Any, end: Any, carried: list[Any], step: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """`for i in [first, end)`; `step(i, carried)` returns the next carried values; the last ones are returned."""
        before = self.b.block
        head, body, after = (self._body.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(self.i64)
        index.add_incoming(first, before)
        values = []
        for value in carried:
            phi = self.b.phi(value.type)
            phi.add_incoming(value, before)
            values.append(phi)
        self.b.cbranch(self.b.icmp_unsigned("<", index, end), body, after)
        self.b.position_at_end(body)
        following = step(index, values)
        index.add_incoming(self.b.add(index, self.c(1)), self.b.block)
        for phi, value in zip(values, following, strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        return values

    def compile(self) -> Kernel:
        """Finish the body and make it callable."""
        self.b.ret_void()
        ir = self.ir
        pointer = self.i8.as_pointer()
        parallel = ir.Function(
            self.module,
            ir.FunctionType(ir.VoidType(), [self._body.type, pointer, self.i32, self.i32]),
            "GOMP_parallel",
        )
        entry = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [pointer, self.i32]), "entry")
        b = ir.IRBuilder(entry.append_basic_block("entry"))
        fields, threads = entry.args
        b.call(parallel, [self._body, fields, threads, ir.Constant(self.i32, 0)])
        b.ret_void()
        return Kernel(_compiled(str(self.module)))


def float_bits(value: float) -> int:
    """`value` as the integer that `Builder.field_float` reads back."""
    return int.from_bytes(struct.pack("<f", value), "little")


def kept(build: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Decorates a function that builds a kernel: it runs once for the same arguments, and where the compiled kernel is
    still on disk from an earlier process, not at all.

    The arguments' `repr` must tell them apart and say all there is to know. What the function does may depend on them,
    on this processor and on the source of this package, nothing else.
    """

    @functools.cache
    def kernel(*arguments: object) -> Kernel:
        _need()
        sources = _sources()
        if sources is None:
            return build(*arguments)
        key = repr((sources, _target(), build.__module__, build.__qualname__, arguments))
        code = object_cache.load(key)
        if code is not None:
            return Kernel(code)
        made = build(*arguments)
        object_cache.save(key, made.machine_code)
        return made

    return functools.update_wrapper(kernel, build)


@functools.cache
def _sources() -> str | None:
    """A digest of this package's source; None where it was shipped without."""
    digest = hashlib.sha256()
    try:
        files = sorted(Path(__file__).parent.glob("*.py"))
        for path in files:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return None
    return digest.hexdigest() if files else None


@functools.cache
def _target() -> tuple[str, ...]:
    """What machine code is made for, and by whom: triple, processor, features, versions."""
    import llvmlite
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    if sys.platform != "darwin":
        # LLVM keeps to half-width vectors on many AVX-512 processors; the full width measured 1.5 times faster.
        features += ",-prefer-256-bit"
    version = ".".join(map(str, llvm.llvm_version_info))
    return llvm.get_default_triple(), llvm.get_host_cpu_name(), features, version, llvmlite.__version__


def _machine() -> Any:
    import llvmlite.binding as llvm

    triple, cpu, features, *_ = _target()
    return llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


def _compiled(source: str) -> bytes:
    """LLVM IR to an object file of this processor's code."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(source)
    module.verify()
    return _machine().emit_object(module)


class Kernel:
    """A compiled kernel: call it with its fields (integers, addresses among them) and the number of threads.

    The call holds no reference to what the addresses point to and does not check them; it releases the GIL.
    """

    def __init__(self, machine_code: bytes) -> None:
        """`machine_code` is an object file with the function `entry`."""
        _need()
        import llvmlite.binding as llvm

        self.machine_code = machine_code
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
        self._engine.finalize_object()
        self.address = self._engine.get_function_address("entry")
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int)(self.address)
        """`run(address, threads)`: the same with the fields in memory, for who calls often."""

    def __call__(self, *fields_and_threads: int) -> None:
        fields = array("q", fields_and_threads[:-1])
        self.run(fields.buffer_info()[0], fields_and_threads[-1])


def run_all(calls: Sequence[tuple[Kernel, array[int]]], threads: int) -> None:
    """Call each kernel with its fields, one after the other and without Python between: other threads are not kept from
    running."""
    table = array("q")
    for kernel, fields in calls:
        table.extend((kernel.address, fields.buffer_info()[0]))
    _sequence()(table.buffer_info()[0], len(calls), threads, 1)


@kept
def _sequence() -> Kernel:
    k = Builder(("table", "n_calls", "threads"))
    b, c = k.b, k.c
    entry = k.ir.FunctionType(k.ir.VoidType(), [k.i8.as_pointer(), k.i32])

    def one_call(index: Any, _: list[Any]) -> list[Any]:
        place = b.add(k.field("table"), b.mul(index, c(16)))
        function = b.inttoptr(k.load(place, k.i64), entry.as_pointer())
        fields = b.inttoptr(k.load(place, k.i64, 8), k.i8.as_pointer())
        b.call(function, [fields, b.trunc(k.field("threads"), k.i32)])
        return []

    k.loop(c(0), k.field("n_calls"), [], one_call)
    return k.compile()
