"""Spack's recipe: spack repo add jobs/packaging/spack && spack install offstage. It builds the tree in which it lies."""
from pathlib import Path

from spack.package import *


class Offstage(CMakePackage, CudaPackage):
    """Trains transformers whose optimizer state does not fit in memory."""

    git = "file://" + str(Path(__file__).resolve().parents[5])

    version("main", branch="main")

    variant("nccl", default=False, when="+cuda", description="Ranks pass layers to each other by NCCL")
    variant("cudnn", default=False, when="+cuda", description="Attention on GPUs by cuDNN")
    variant("openmp", default=True, description="Several threads for each rank")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.10:", type="build")
    depends_on("mpi")
    depends_on("boost@1.74: +program_options")
    depends_on("fmt")
    depends_on("hdf5@1.10: ~mpi")
    depends_on("hwloc")
    depends_on("icu4c")
    depends_on("libaio")
    depends_on("nlohmann-json")
    depends_on("onednn")
    depends_on("pcre2")
    depends_on("sentencepiece")
    depends_on("xxhash")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl", when="+nccl")
    depends_on("cudnn@9:", when="+cudnn")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("OFFSTAGE_TESTS", False),
            self.define("OFFSTAGE_PERF", False),
            self.define_from_variant("OFFSTAGE_OPENMP", "openmp"),
            self.define("OFFSTAGE_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("OFFSTAGE_NCCL", "ON" if self.spec.satisfies("+nccl") else "OFF"),
            self.define("OFFSTAGE_CUDNN", "ON" if self.spec.satisfies("+cudnn") else "OFF"),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args

    def check_install(self):
        Executable(self.prefix.bin.offstage)("--version")
