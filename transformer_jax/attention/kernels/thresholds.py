"""The sizes from which a CPU computes attention by blocks, and by the kernel in C++.

LIMITS and KERNEL_FROM are fitted by bench/pages/plan.py to the table of `python -m bench.plan`, and
tests/bench/test_plan.py compares them. SINGLE_QUERY_FROM is read from the same table. AVX-512 makes
arithmetic cheaper in ratio to memory, and AMX makes products in bfloat16 cheaper, so that
processors with and without them have different sizes. The sizes of "amx" and "other" are fitted to
times of an earlier kernel, whose gradient was slower for short texts. docs/benchmarks/plan.md has
the dates.
"""

from typing import NamedTuple

from transformer_jax.runtime.processor import Instructions


class Limits(NamedTuple):
    """The numbers of logits from which blocks are used in place of the reference."""

    one_example: int  # of the only example
    of_several: int  # of each of several examples
    together: int  # of all examples


class KernelFrom(NamedTuple):
    """The numbers of logits of a head from which the kernel in C++ is used, if it takes the
    arguments.
    """

    one_example: int  # if there is only one
    of_several: int


class Case(NamedTuple):
    """A combination of processor, dtype, pass and mask, which has sizes of its own."""

    instructions: Instructions  # the widest that the processor has
    narrow: bool  # the dtype has less than 32 bits
    gradient: bool  # derivatives are taken
    masked: bool  # there is a mask, under which blocks can be skipped


# The reference is faster while the logits of an example about fit the caches, and while those of
# all examples do not exceed the caches so far that fresh pages cost more than the arithmetic.
LIMITS = {
    Case("amx", False, False, False): Limits(2**22, 2**20, 2**23),
    Case("amx", False, False, True): Limits(2**17, 2**18, 2**22),
    Case("amx", False, True, False): Limits(2**17, 2**20, 2**26),
    Case("amx", False, True, True): Limits(2**22, 2**20, 2**26),
    Case("amx", True, False, False): Limits(2**22, 2**20, 2**26),
    Case("amx", True, False, True): Limits(2**17, 2**17, 2**22),
    Case("amx", True, True, False): Limits(2**17, 2**20, 2**26),
    Case("amx", True, True, True): Limits(2**20, 2**20, 2**26),
    Case("avx512", False, False, False): Limits(2**21, 2**20, 2**23),
    Case("avx512", False, False, True): Limits(2**17, 2**18, 2**22),
    Case("avx512", False, True, False): Limits(2**17, 2**20, 2**26),
    Case("avx512", False, True, True): Limits(2**22, 2**22, 2**26),
    Case("avx512", True, False, False): Limits(2**22, 2**20, 2**26),
    Case("avx512", True, False, True): Limits(2**22, 2**20, 2**26),
    Case("avx512", True, True, False): Limits(2**17, 2**20, 2**26),
    Case("avx512", True, True, True): Limits(2**18, 2**20, 2**26),
    Case("other", False, False, False): Limits(2**22, 2**20, 2**24),
    Case("other", False, False, True): Limits(2**18, 2**18, 2**22),
    Case("other", False, True, False): Limits(2**17, 2**20, 2**26),
    Case("other", False, True, True): Limits(2**22, 2**22, 2**26),
    Case("other", True, False, False): Limits(2**17, 2**20, 2**26),
    Case("other", True, False, True): Limits(2**17, 2**17, 2**22),
    Case("other", True, True, False): Limits(2**17, 2**20, 2**26),
    Case("other", True, True, True): Limits(2**22, 2**20, 2**26),
}
KERNEL_FROM = {
    Case("amx", False, False, False): KernelFrom(2**8, 2**11),
    Case("amx", False, False, True): KernelFrom(2**8, 2**8),
    Case("amx", False, True, False): KernelFrom(2**13, 2**13),
    Case("amx", False, True, True): KernelFrom(2**11, 2**13),
    Case("amx", True, False, False): KernelFrom(2**8, 2**15),
    Case("amx", True, False, True): KernelFrom(2**8, 2**9),
    Case("amx", True, True, False): KernelFrom(2**13, 2**15),
    Case("amx", True, True, True): KernelFrom(2**13, 2**15),
    Case("avx512", False, False, False): KernelFrom(2**8, 2**8),
    Case("avx512", False, False, True): KernelFrom(2**9, 2**8),
    Case("avx512", False, True, False): KernelFrom(2**9, 2**8),
    Case("avx512", False, True, True): KernelFrom(2**9, 2**8),
    Case("avx512", True, False, False): KernelFrom(2**8, 2**8),
    Case("avx512", True, False, True): KernelFrom(2**8, 2**8),
    Case("avx512", True, True, False): KernelFrom(2**8, 2**8),
    Case("avx512", True, True, True): KernelFrom(2**9, 2**8),
    Case("other", False, False, False): KernelFrom(2**8, 2**8),
    Case("other", False, False, True): KernelFrom(2**8, 2**8),
    Case("other", False, True, False): KernelFrom(2**13, 2**11),
    Case("other", False, True, True): KernelFrom(2**11, 2**9),
    Case("other", True, False, False): KernelFrom(2**8, 2**9),
    Case("other", True, False, True): KernelFrom(2**8, 2**8),
    Case("other", True, True, False): KernelFrom(2**13, 2**9),
    Case("other", True, True, True): KernelFrom(2**11, 2**9),
}
# The number of keys of all examples from which the kernel is used for a single query, by whether
# there is a mask.
SINGLE_QUERY_FROM = {False: 2**5, True: 2**6}
