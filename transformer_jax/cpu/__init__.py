"""Kernels in C++ for one CPU, compiled by the system's compiler."""
