#!/usr/bin/env python3
"""Tests of check_rooms.py on small trees."""
import tempfile
import unittest
from pathlib import Path

import check_rooms


class CheckRooms(unittest.TestCase):
    def offences(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                with open(path.parent / "CMakeLists.txt", "a") as cmake:
                    cmake.write(f"{path.name}\n")
            return check_rooms.check(root)[1]

    def test_a_lower_rank_and_the_own_room_are_fine(self):
        self.assertEqual([], self.offences({
            "src/base/error.hpp": "#include <string>\n",
            "src/tiers/tiers.hpp": '#include "base/error.hpp"\n',
            "src/tiers/lease.cpp": '#include "tiers/tiers.hpp"\n',
            "kernels/adamw.hpp": '#include "base/error.hpp"\n',
            "src/update/update.cpp": '#include "kernels/adamw.hpp"\n#include "tiers/tiers.hpp"\n',
        }))

    def test_a_higher_rank_is_named_with_file_and_line(self):
        found = self.offences({"src/update/update.hpp": "",
                               "src/tiers/lease.cpp": '\n#include "update/update.hpp"\n'})
        self.assertEqual(["src/tiers/lease.cpp:2: tiers (rank 3) includes update (rank 5): "
                          "only lower ranks are allowed"], found)

    def test_a_room_of_the_same_rank_is_an_offence(self):
        found = self.offences({"kernels/adamw.hpp": "", "src/tiers/lease.cpp": '#include "kernels/adamw.hpp"\n'})
        self.assertEqual(["src/tiers/lease.cpp:1: tiers (rank 3) includes kernels (rank 3): "
                          "only lower ranks are allowed"], found)

    def test_an_include_names_the_room(self):
        found = self.offences({"kernels/adamw.hpp": "", "src/update/lane.cpp": '#include "adamw.hpp"\n'
                               '#include "src/base/error.hpp"\n', "src/base/error.hpp": ""})
        self.assertEqual([f'src/update/lane.cpp:{line}: "{name}" is not found beside the including file or from src'
                          for line, name in ((1, "adamw.hpp"), (2, "src/base/error.hpp"))], found)

    def test_rooms_of_platform_do_not_include_each_other(self):
        found = self.offences({"src/platform/mpi/comm.hpp": "",
                               "src/platform/aio/file.cpp": '#include "platform/mpi/comm.hpp"\n'})
        self.assertEqual(1, len(found))
        self.assertIn("only base and themselves", found[0])

    def test_an_inner_room_includes_inner_rooms_of_a_lower_inner_rank_alone(self):
        header = {"src/update/trips.hpp": "", "src/update/gradients/sums.hpp": "", "src/update/lanes/lane.hpp": ""}
        self.assertEqual([], self.offences({**header, "src/update/update.cpp": '#include "update/gradients/sums.hpp"\n',
                                            "src/update/gradients/held.cpp": '#include "update/gradients/sums.hpp"\n'}))
        self.assertEqual(["src/update/gradients/held.cpp:1: update/gradients (inner rank 0) includes update/. (inner rank 1): "
                          "only lower inner ranks are allowed"],
                         self.offences({**header, "src/update/gradients/held.cpp": '#include "update/trips.hpp"\n'}))
        self.assertEqual(["src/update/lanes/host.cpp:1: update/lanes is no inner room of update"],
                         self.offences({**header, "src/update/lanes/host.cpp": '#include "update/trips.hpp"\n'}))

    def test_a_third_party_header_belongs_to_its_room(self):
        found = self.offences({"src/train/trainer.cpp": "#include <mpi.h>\n",
                               "src/platform/mpi/comm.cpp": "#include <mpi.h>\n"})
        self.assertEqual(["src/train/trainer.cpp:1: train includes <mpi.h>, "
                          "which belongs to platform/mpi"], found)

    def test_a_source_begins_with_its_own_header(self):
        header = {"src/base/error.hpp": ""}
        self.assertEqual([], self.offences({**header, "src/base/error.cpp": '// Why.\n#include "base/error.hpp"\n'}))
        self.assertEqual([], self.offences({**header, "src/base/error.cpp": '#include "error.hpp"\n'}))
        for text in "", '#include <string>\n#include "base/error.hpp"\n':
            self.assertEqual(["src/base/error.cpp:1: does not include error.hpp before all else"],
                             self.offences({**header, "src/base/error.cpp": text}))

    def test_a_header_without_such_a_source_is_begun_with_by_one_called_after_it(self):
        header = {"kernels/norms/rmsnorm.hpp": "", "kernels/norms/rows.hpp": ""}
        begins, other = '#include "kernels/norms/rmsnorm.hpp"\n', '#include "kernels/norms/rows.hpp"\n'
        self.assertEqual([], self.offences({**header, "kernels/norms/rmsnorm_ref.cpp": other + begins,
                                            "kernels/norms/rmsnorm_host.cpp": begins + other}))
        self.assertEqual([], self.offences({**header, "kernels/norms/layernorm_ref.cpp": other + begins}))
        self.assertEqual(
            ["kernels/norms/rmsnorm.hpp:1: is not included before all else by rmsnorm_host.cpp or rmsnorm_ref.cpp"],
            self.offences({**header, "kernels/norms/rmsnorm_ref.cpp": other + begins,
                           "kernels/norms/rmsnorm_host.cpp": "#include <span>\n" + begins}))

    def test_a_source_that_cmake_does_not_know_checks_no_header(self):
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder).resolve() / "src/base"
            room.mkdir(parents=True)
            (room / "CMakeLists.txt").write_text("SOURCES error_b.cpp HEADERS error.hpp\n")
            (room / "error.hpp").write_text("")
            (room / "error_a.cpp").write_text('#include "base/error.hpp"\n')
            (room / "error_b.cpp").write_text("")
            self.assertEqual(["src/base/error.hpp:1: is not included before all else by error_b.cpp"],
                             check_rooms.check(room.parent.parent)[1])

    def test_a_header_includes_what_the_precompiled_one_would_hide(self):
        self.assertEqual([], self.offences({
            "src/base/error.hpp": "#include <string>\nstd::string f();  // no std::vector\n"}))
        self.assertEqual(["src/base/error.hpp:2: uses std::string without #include <string>"], self.offences({
            "src/base/error.hpp": "#include <string_view>\nstd::string f(std::string_view);\nstd::string g();\n"}))

    def test_a_header_in_a_folder_of_a_room_is_listed_with_the_folder(self):
        for entry in "norms/rmsnorm.hpp", "rmsnorm.hpp":
            with tempfile.TemporaryDirectory() as folder:
                kernels = Path(folder).resolve() / "kernels"
                (kernels / "norms").mkdir(parents=True)
                (kernels / "norms/rmsnorm.hpp").write_text("")
                (kernels / "CMakeLists.txt").write_text(f"HEADERS {entry}\n")
                problems = check_rooms.check(kernels.parent)[1]
                self.assertEqual("/" not in entry, bool(problems), problems)

    def test_a_header_that_cmake_does_not_know_is_an_offence(self):
        with tempfile.TemporaryDirectory() as folder:
            header = Path(folder).resolve() / "src/base/error.hpp"
            header.parent.mkdir(parents=True)
            header.write_text("")
            self.assertIn("not listed", check_rooms.check(Path(folder).resolve())[1][0])


if __name__ == "__main__":
    unittest.main()
