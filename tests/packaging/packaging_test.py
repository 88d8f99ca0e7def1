#!/usr/bin/env python3
"""Spack's recipe against what CMake and the package list want, and CITATION.cff's version. Spack itself is not here: its classes are replaced by
ones that note what the recipe says. $SOURCES is the source directory."""
import os
import re
import runpy
import sys
import types
import unittest
from pathlib import Path

SOURCES = Path(os.environ["SOURCES"])
RECIPE = SOURCES / "jobs/packaging/spack/packages/offstage/package.py"

# Debian's packages for compiling, and Spack's. None: Spack's compiler, or what tests alone need.
SPACK = {
    "g++": None, "cmake": "cmake", "ninja-build": "ninja", "pkg-config": "pkgconfig", "python3": "python",
    "libopenmpi-dev": "mpi", "libdnnl-dev": "onednn", "libhdf5-dev": "hdf5", "libaio-dev": "libaio", "libxxhash-dev": "xxhash",
    "libboost-program-options-dev": "boost", "libfmt-dev": "fmt", "nlohmann-json3-dev": "nlohmann-json", "libhwloc-dev": "hwloc",
    "libsentencepiece-dev": "sentencepiece", "libicu-dev": "icu4c", "libpcre2-dev": "pcre2", "zlib1g-dev": "zlib-api",
    "libzstd-dev": "zstd", "libgtest-dev": None, "libgmock-dev": None,
}


class Spec:
    """What a user asked for: variants that are on."""

    def __init__(self, variants):
        self.on = variants
        self.variants = {"cuda_arch": types.SimpleNamespace(value=("90",))}

    def satisfies(self, what):
        return what.lstrip("+") in self.on


class CMakePackage:
    def define(self, name, value):
        return f"-D{name}={value}"

    def define_from_variant(self, name, variant):
        return self.define(name, self.spec.satisfies(f"+{variant}"))


def recipe(*variants):
    """The recipe's class and the specs of its dependencies."""
    depends = []
    stub = types.ModuleType("spack.package")
    stub.CMakePackage, stub.CudaPackage = CMakePackage, type("CudaPackage", (), {})
    stub.depends_on = lambda spec, **_: depends.append(spec)
    stub.version = stub.variant = stub.generator = lambda *_, **__: None
    sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": stub})
    package = runpy.run_path(RECIPE)["Offstage"]()
    package.spec = Spec(variants)
    return package, [re.match(r"[a-z0-9-]+", spec)[0] for spec in depends]


class Recipe(unittest.TestCase):
    def test_defines_what_cmake_knows(self):
        known = set(re.findall(r"^(?:set|option)\((OFFSTAGE_\w+)", (SOURCES / "CMakeLists.txt").read_text(), re.M))
        for variants in (), ("openmp", "cuda", "nccl", "cudnn"):
            given = dict(arg.removeprefix("-D").split("=", 1) for arg in recipe(*variants)[0].cmake_args())
            self.assertLessEqual({name for name in given if name.startswith("OFFSTAGE_")}, known)
            self.assertEqual("ON" if variants else "OFF", given["OFFSTAGE_CUDA"])

    def test_depends_on_what_the_package_list_has(self):
        text = (SOURCES / "jobs/packages.txt").read_text().split("[build]")[1].split("\n[")[0]
        listed = [line.split()[0] for line in text.splitlines()[1:] if line.strip()]
        development = [name for name in listed if name.endswith("-dev") or name in SPACK]
        self.assertEqual([], [name for name in development if name not in SPACK], "add them to SPACK and to the recipe")
        depends = recipe()[1]
        for name in development:
            if SPACK[name]:
                self.assertIn(SPACK[name], depends, name)

    def test_builds_the_tree_in_which_it_lies(self):
        self.assertEqual(f"file://{SOURCES.resolve()}", recipe()[0].git)


class Citation(unittest.TestCase):
    def test_cites_this_version(self):
        [version] = re.findall(r"^project\(offstage VERSION (\S+)", (SOURCES / "CMakeLists.txt").read_text(), re.M)
        self.assertIn(f"\nversion: {version}\n", (SOURCES / "CITATION.cff").read_text())


if __name__ == "__main__":
    unittest.main()
