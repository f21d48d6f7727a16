"""The sizes from which a CPU computes attention by blocks, and by the kernel in C++.

LIMITS and KERNEL_FROM are fitted by bench/pages/plan.py to the table of `python -m bench.plan`, and
tests/bench/test_plan.py compares them. SINGLE_QUERY_FROM is read from the same table. Vectors of
512 bits make arithmetic cheaper in ratio to memory, so that processors with AVX-512 and without it
have different sizes.
"""

from typing import NamedTuple


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

    avx512: bool  # the processor has vectors of 512 bits
    narrow: bool  # the dtype has less than 32 bits
    gradient: bool  # derivatives are taken
    masked: bool  # there is a mask, under which blocks can be skipped


# The reference is faster while the logits of an example about fit the caches, and while those of
# all examples do not exceed the caches so far that fresh pages cost more than the arithmetic.
LIMITS = {
    Case(True, False, False, False): Limits(2**22, 2**20, 2**23),
    Case(True, False, False, True): Limits(2**17, 2**18, 2**22),
    Case(True, False, True, False): Limits(2**17, 2**20, 2**26),
    Case(True, False, True, True): Limits(2**22, 2**20, 2**26),
    Case(True, True, False, False): Limits(2**22, 2**20, 2**26),
    Case(True, True, False, True): Limits(2**17, 2**17, 2**22),
    Case(True, True, True, False): Limits(2**17, 2**20, 2**26),
    Case(True, True, True, True): Limits(2**20, 2**20, 2**26),
    Case(False, False, False, False): Limits(2**22, 2**20, 2**24),
    Case(False, False, False, True): Limits(2**18, 2**18, 2**22),
    Case(False, False, True, False): Limits(2**17, 2**20, 2**26),
    Case(False, False, True, True): Limits(2**22, 2**22, 2**26),
    Case(False, True, False, False): Limits(2**17, 2**20, 2**26),
    Case(False, True, False, True): Limits(2**17, 2**17, 2**22),
    Case(False, True, True, False): Limits(2**17, 2**20, 2**26),
    Case(False, True, True, True): Limits(2**22, 2**20, 2**26),
}
KERNEL_FROM = {
    Case(True, False, False, False): KernelFrom(2**8, 2**11),
    Case(True, False, False, True): KernelFrom(2**8, 2**8),
    Case(True, False, True, False): KernelFrom(2**13, 2**13),
    Case(True, False, True, True): KernelFrom(2**11, 2**13),
    Case(True, True, False, False): KernelFrom(2**8, 2**15),
    Case(True, True, False, True): KernelFrom(2**8, 2**9),
    Case(True, True, True, False): KernelFrom(2**13, 2**15),
    Case(True, True, True, True): KernelFrom(2**13, 2**15),
    Case(False, False, False, False): KernelFrom(2**8, 2**8),
    Case(False, False, False, True): KernelFrom(2**8, 2**8),
    Case(False, False, True, False): KernelFrom(2**13, 2**11),
    Case(False, False, True, True): KernelFrom(2**11, 2**9),
    Case(False, True, False, False): KernelFrom(2**8, 2**9),
    Case(False, True, False, True): KernelFrom(2**8, 2**8),
    Case(False, True, True, False): KernelFrom(2**13, 2**9),
    Case(False, True, True, True): KernelFrom(2**11, 2**9),
}
# The number of keys of all examples from which the kernel is used for a single query, by whether
# there is a mask.
SINGLE_QUERY_FROM = {False: 2**5, True: 2**6}
