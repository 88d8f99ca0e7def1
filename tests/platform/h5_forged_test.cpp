// Files that another program wrote, to lead a reader elsewhere or to cost it memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "platform/h5/file.hpp"
#include "platform/scratch_directory.hpp"

/// The leak sanitizer asks for this: HDF5 1.10 itself loses memory where it meets damaged metadata.
extern "C" char const* __lsan_default_suppressions() {
  return "leak:libhdf5";
}

namespace offstage::h5 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr hsize_t numbers = 4;

class ForgedH5File : public ::testing::Test {
 protected:
  // A test that hangs ends here.
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }

  /// A file as HDF5 writes it.
  void write(std::function<void(hid_t)> const& fill) const {
    hid_t const newest = H5Pcreate(H5P_FILE_ACCESS);  // with checksums
    H5Pset_libver_bounds(newest, H5F_LIBVER_V18, H5F_LIBVER_V110);
    hid_t const file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, newest);
    H5Pclose(newest);
    ASSERT_GE(file, 0);
    fill(file);
    ASSERT_GE(H5Fclose(file), 0);
  }
  /// Four numbers, with a layout and values if there are any.
  static void add(hid_t file, char const* name, hid_t type, hid_t layout = H5P_DEFAULT,
                  hsize_t count = numbers) {
    hid_t const space = H5Screate_simple(1, &count, nullptr);
    hid_t const data = H5Dcreate2(file, name, type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    ASSERT_GE(data, 0);
    if (count == numbers) {
      std::vector<std::int64_t> const values{1, 2, 3, 4};
      EXPECT_GE(H5Dwrite(data, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    }
    H5Dclose(data);
    H5Sclose(space);
  }
  [[nodiscard]] std::string problem(std::function<void(File const&)> const& read) const {
    try {
      read(File::open_read(path));
    } catch (DataError const& error) {
      return error.what();
    }
    return "no such error";
  }
  [[nodiscard]] std::string problem_reading(char const* name) const {
    return problem([&](File const& file) { (void)file.read<std::int64_t>(name, {numbers}); });
  }

  ScratchDirectory scratch;
  std::string path = scratch / "forged.h5";
};

TEST_F(ForgedH5File, IsReadIfNothingIsWrongWithIt) {
  write([](hid_t file) { add(file, "/plain", H5T_STD_I64LE); });
  EXPECT_EQ(problem_reading("/plain"), "no such error");
  Bytes const offset = File::open_read(path).offset("/plain", Type::i64, {numbers});
  EXPECT_GT(offset, 0);
  EXPECT_LT(offset, static_cast<Bytes>(std::filesystem::file_size(path)));
}

TEST_F(ForgedH5File, LeadsNowhereByLinks) {
  {
    File other = File::create(scratch / "other.h5");
    std::vector<std::int64_t> const values{1, 2, 3, 4};
    other.write<std::int64_t>("/group/plain", {numbers}, values);
    other.close();
  }
  write([](hid_t file) {
    add(file, "/plain", H5T_STD_I64LE);
    EXPECT_GE(H5Lcreate_soft("/plain", file, "/soft", H5P_DEFAULT, H5P_DEFAULT), 0);
    EXPECT_GE(
        H5Lcreate_external("other.h5", "/group/plain", file, "/external", H5P_DEFAULT, H5P_DEFAULT),
        0);
    EXPECT_GE(H5Lcreate_external("other.h5", "/group", file, "/group", H5P_DEFAULT, H5P_DEFAULT),
              0);
  });
  EXPECT_THAT(problem_reading("/soft"), AllOf(HasSubstr("forged.h5: /soft"), HasSubstr("link")));
  EXPECT_THAT(problem_reading("/external"), HasSubstr("/external is a link to another place"));
  EXPECT_THAT(problem_reading("/group/plain"), HasSubstr("/group is a link to another place"));
}

TEST_F(ForgedH5File, ReadsNoOtherFilesBytes) {
  std::filesystem::create_directory(scratch / "bytes");
  write([&](hid_t file) {
    hid_t const layout = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(layout, (scratch / "bytes/raw").c_str(), 0, numbers * 8);
    add(file, "/external", H5T_STD_I64LE, layout);
    H5Pclose(layout);
  });
  EXPECT_THAT(problem_reading("/external"), HasSubstr("/external does not stand in this file"));
  // A pipe in the place of those bytes would be waited for without end.
  std::filesystem::remove(scratch / "bytes/raw");
  ASSERT_EQ(mkfifo((scratch / "bytes/raw").c_str(), 0600), 0);
  EXPECT_THAT(problem_reading("/external"), HasSubstr("/external does not stand in this file"));
}

TEST_F(ForgedH5File, ReadsNoMappedArrayWhereItExpectsAPlainOne) {
  write([](hid_t file) {
    hsize_t const count = numbers;
    hid_t const space = H5Screate_simple(1, &count, nullptr);
    hid_t const layout = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_virtual(layout, space, "elsewhere.h5", "/data", space);
    hid_t const data =
        H5Dcreate2(file, "/mapped", H5T_STD_I64LE, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    EXPECT_GE(data, 0);
    H5Dclose(data);
    H5Pclose(layout);
    H5Sclose(space);
  });
  EXPECT_THAT(problem_reading("/mapped"), HasSubstr("/mapped does not stand in this file"));
}

TEST_F(ForgedH5File, ReadsNothingInPiecesOrBehindAFilter) {
  write([](hid_t file) {
    hid_t const layout = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t const piece = 2;
    H5Pset_chunk(layout, 1, &piece);
    add(file, "/pieces", H5T_STD_I64LE, layout);
    H5Pset_shuffle(layout);
    add(file, "/filtered", H5T_STD_I64LE, layout);
    H5Pclose(layout);
  });
  EXPECT_THAT(problem_reading("/pieces"), HasSubstr("/pieces does not stand in this file"));
  EXPECT_THAT(problem_reading("/filtered"), HasSubstr("/filtered does not stand in this file"));
}

TEST_F(ForgedH5File, LoadsNoPlugin) {
  write([](hid_t file) { add(file, "/plain", H5T_STD_I64LE); });
  EXPECT_EQ(problem_reading("/plain"), "no such error");
  unsigned kinds = H5PL_ALL_PLUGIN;
  EXPECT_GE(H5PLget_loading_state(&kinds), 0);
  EXPECT_EQ(kinds, 0U);
}

TEST_F(ForgedH5File, MakesNoRoomForWhatIsNotThere) {
  constexpr hsize_t many = hsize_t{1} << 40;
  write([](hid_t file) {
    hid_t const layout = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t const piece = 1024;
    H5Pset_chunk(layout, 1, &piece);
    hid_t const text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, 100);
    add(file, "/pieces", text, layout, many);
    add(file, "/unwritten", text, H5P_DEFAULT, many);
    add(file, "/wide", text, H5P_DEFAULT, 0);
    H5Tclose(text);
    H5Pclose(layout);
  });
  for (char const* const name : {"/pieces", "/unwritten"}) {
    EXPECT_THAT(problem([&](File const& file) { (void)file.read_texts(name, many); }),
                HasSubstr(name));
  }
  EXPECT_THAT(problem([&](File const& file) { (void)file.read_texts("/wide", 0, 99); }),
              HasSubstr("/wide holds no texts of at most 99 bytes"));
}

TEST_F(ForgedH5File, ConvertsNothing) {
  write([](hid_t file) {
    add(file, "/turned", H5T_STD_I64BE);
    add(file, "/short", H5T_STD_I32LE);
  });
  EXPECT_THAT(problem_reading("/turned"), HasSubstr("/turned has an unexpected type"));
  EXPECT_THAT(problem_reading("/short"), HasSubstr("/short has an unexpected type"));
}

TEST_F(ForgedH5File, HasNoAttributeOfAnySize) {
  {
    File file = File::create(path);
    file.set("long", std::string((16U << 20) + 1, 'x'));
    file.close();
  }
  EXPECT_THAT(problem([](File const& file) { (void)file.text("long"); }),
              HasSubstr("attribute long is not a text of at most 16.0 MiB"));
}

// HDF5 asks for that much before it looks at the checksum, and says that memory has ended.
TEST_F(ForgedH5File, WithASizeBeyondAllMemoryIsDamagedAndNoShortage) {
  write([](hid_t file) { add(file, "/plain", H5T_STD_I64LE); });
  std::string whole(std::filesystem::file_size(path), '\0');
  std::ifstream{path, std::ios::binary}.read(whole.data(), std::ssize(whole));
  for (std::size_t at = 0; at + 8 <= whole.size() && at < 1000; ++at) {
    std::string const damaged = std::string{whole}.replace(at, 8, 8, '\xff');
    std::ofstream{path, std::ios::binary | std::ios::trunc} << damaged;
    EXPECT_NO_THROW((void)problem_reading("/plain")) << at;
  }
}

TEST_F(ForgedH5File, IsARegularFile) {
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(problem([](File const&) {}), HasSubstr("forged.h5 is no regular file"));
  std::filesystem::remove(path);
  { (void)File::create(scratch / "other.h5"); }
  std::filesystem::create_symlink("other.h5", path);
  EXPECT_THAT(problem([](File const&) {}), HasSubstr("forged.h5 is no regular file"));
}

}  // namespace
}  // namespace offstage::h5
