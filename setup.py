"""Builds the CPU kernels (common/native/src), once for each set of instructions.

A build that a compiler or a processor can't do is left out, with a warning: what is missing is said
at start, and `linear = "int8"` takes what there is.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("common/native/src")
# -ffp-contract=off: products and sums are fused where the source says so, and nowhere else.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-D_GNU_SOURCE", "-Wno-psabi"]
AVX512 = ["-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
LEVELS = {
    "amx": [*AVX512, "-mamx-tile", "-mamx-int8"],
    "vnni": AVX512,
    "avx2": ["-mavx2", "-mfma"],
    "plain": [],
}


class BuildLevels(build_ext):
    """The same sources several times, each in a folder of its own."""

    def build_extension(self, ext: Extension) -> None:
        own, self.build_temp = self.build_temp, str(Path(self.build_temp) / ext.name)
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = own


setup(
    ext_modules=[
        Extension(
            f"common.native.kernels_{level}",
            sources=[str(each) for each in sorted(SOURCES.glob("*.c"))],
            depends=[str(each) for each in sorted(SOURCES.glob("*.h"))],
            extra_compile_args=[*FLAGS, *flags],
            optional=True,
        )
        for level, flags in LEVELS.items()
    ],
    cmdclass={"build_ext": BuildLevels},
)
