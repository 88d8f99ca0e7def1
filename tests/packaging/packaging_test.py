#!/usr/bin/env python3
"""Spack's recipe against what CMake and the package list want, CITATION.cff's version, and the commit that the program names. Spack itself is not here: its classes are replaced by
ones that note what the recipe says. $SOURCES is the source directory."""
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
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


@unittest.skipUnless(shutil.which("git") and shutil.which("cmake"), "needs git and cmake")
class Commit(unittest.TestCase):
    """What --version says of the sources' commit."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        self.sources = self.repository(self.folder / "sources", "src/cli/commit.cmake", ".gitattributes")

    def git(self, directory, *words):
        command = ["git", "-C", directory, "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def repository(self, directory, *files):
        for file in files:
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCES / file, directory / file)
        self.git(self.folder, "init", "--quiet", directory)
        self.git(directory, "add", "--all")
        self.git(directory, "commit", "--quiet", "--allow-empty", "--message=first")
        return directory

    def commit_of(self, sources):
        output = self.folder / "commit.cpp"
        subprocess.run(["cmake", f"-DSOURCE={sources}", f"-DOUTPUT={output}", "-P", sources / "src/cli/commit.cmake"], check=True)
        return re.search(r'return "(.*)"', output.read_text())[1]

    def archive(self, place):
        place.mkdir(parents=True)
        self.git(self.sources, "archive", f"--output={place}.tar", "HEAD")
        subprocess.run(["tar", "-C", place, "-xf", f"{place}.tar"], check=True)
        return place

    def test_is_that_of_the_checkout(self):
        head = self.git(self.sources, "rev-parse", "--short=12", "HEAD")
        self.assertEqual(head, self.commit_of(self.sources))
        with (self.sources / "src/cli/commit.cmake").open("a") as file:
            file.write("# more\n")
        self.assertEqual(head + "+changes", self.commit_of(self.sources))

    def test_is_in_an_archive_also_inside_another_repository(self):
        head = self.git(self.sources, "rev-parse", "--short=12", "HEAD")
        around = self.repository(self.folder / "around")
        for place in self.folder / "unpacked", around / "offstage":
            self.assertEqual(head, self.commit_of(self.archive(place)), place)

    def test_is_not_known_of_a_bare_copy(self):
        around = self.repository(self.folder / "around")
        self.assertEqual("unknown", self.commit_of(Path(shutil.copytree(self.sources, around / "copy", ignore=shutil.ignore_patterns(".git")))))


@unittest.skipUnless(shutil.which("cmake"), "needs cmake")
class Options(unittest.TestCase):
    def test_a_word_that_is_none_of_a_switch_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["cmake", "-S", SOURCES, "-B", folder, "-DOFFSTAGE_CUDA=0"], capture_output=True, text=True)
        self.assertEqual(1, done.returncode, done)
        self.assertIn("OFFSTAGE_CUDA=0: give AUTO, ON or OFF", done.stderr)

    def test_fast_math_that_others_ask_for_is_left_out(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "CMakeLists.txt").write_text(
                f"cmake_minimum_required(VERSION 3.25)\nproject(numbers LANGUAGES CXX)\ninclude({SOURCES}/src/rooms.cmake)\n"
                "add_executable(numbers numbers.cpp)\ntarget_link_libraries(numbers offstage::warnings)\n")
            (folder / "numbers.cpp").write_text(
                "#include <cmath>\n#include <cstdlib>\n#include <limits>\n"
                "int main() {\n"
                "  float volatile const smallest = std::numeric_limits<float>::min();\n"
                "  bool const is_number = std::isfinite(std::strtof(\"nan\", nullptr));\n"
                "  return is_number ? 1 : smallest / 2 == 0 ? 2 : 0;\n}\n")
            for flags in "CMAKE_CXX_FLAGS=-ffast-math", "CMAKE_CXX_FLAGS_RELEASE=-Ofast":
                build = folder / flags
                for step in ["-S", folder, "-B", build, "-DCMAKE_BUILD_TYPE=Release", f"-D{flags}"], ["--build", build]:
                    done = subprocess.run(["cmake", *step], capture_output=True, text=True)
                    self.assertEqual(0, done.returncode, done)
                self.assertEqual(0, subprocess.run([build / "numbers"]).returncode, flags)


class Citation(unittest.TestCase):
    def test_cites_this_version(self):
        [version] = re.findall(r"^project\(offstage VERSION (\S+)", (SOURCES / "CMakeLists.txt").read_text(), re.M)
        self.assertIn(f"\nversion: {version}\n", (SOURCES / "CITATION.cff").read_text())


if __name__ == "__main__":
    unittest.main()
