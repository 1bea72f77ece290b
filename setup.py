"""Build the native kernels where PyTorch and a C++ compiler are; pyproject.toml has everything else."""

import setuptools

try:
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError:  # in pip's isolated build: the operations then run one by one
    setuptools.setup()
else:
    FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
    SOURCE = "src/flexround/quant/native/kernels.cpp"
    KERNELS = CppExtension("flexround.quant.native.kernels", [SOURCE], extra_compile_args=FLAGS, optional=True)
    setuptools.setup(ext_modules=[KERNELS], cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)})
