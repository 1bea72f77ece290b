"""Build the native kernels: ``python -m flexround.quant.native``, as ``make install`` does."""

from flexround.quant import native

native.build()
