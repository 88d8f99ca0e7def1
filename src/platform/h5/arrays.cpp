// Arrays that are there: where they stand, and that what is read lies in the file that was opened.
#include <fmt/format.h>
#include <hdf5.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "platform/h5/file.hpp"
#include "platform/h5/handle.hpp"

namespace offstage::h5 {

void File::require_regular() const {
  struct stat status {};
  if (lstat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    fail(path_ + " is no regular file");
  }
}

void File::require_own(std::string const& name) const {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    std::string const part = name.substr(0, end);
    H5L_info_t link{};
    checked(H5Lget_info(id_, part.c_str(), &link, H5P_DEFAULT), "find " + part);
    if (link.type != H5L_TYPE_HARD) {
      fail(fmt::format("{}: {} is a link to another place", path_, part));
    }
  }
}

std::int64_t File::open_in_place(std::string const& name) const {
  require_own(name);
  Handle dataset{H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose};
  checked(dataset.get(), "open " + name);
  Handle const layout{H5Dget_create_plist(dataset.get()), H5Pclose};
  std::string const action = "read the layout of " + name;
  checked(layout.get(), action);
  if (checked(H5Pget_layout(layout.get()), action) != H5D_CONTIGUOUS ||
      checked(H5Pget_external_count(layout.get()), action) != 0 ||
      checked(H5Pget_nfilters(layout.get()), action) != 0) {
    fail(fmt::format("{}: {} does not stand in this file in one piece", path_, name));
  }
  return dataset.release();
}

void File::require_size(std::int64_t dataset, std::string const& name, Bytes bytes) const {
  if (H5Dget_storage_size(dataset) != static_cast<hsize_t>(bytes)) {
    fail(fmt::format("{}: {} has no place in the file", path_, name));
  }
}

Shape File::shape_of(std::int64_t dataset, std::string const& name) const {
  std::string const action = "read the shape of " + name;
  Handle const space{H5Dget_space(dataset), H5Sclose};
  checked(space.get(), action);
  auto const rank = checked(H5Sget_simple_extent_ndims(space.get()), action);
  std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
  checked(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr), action);
  return {dims.begin(), dims.end()};
}

Shape File::shape(std::string const& name) const {
  Turn const turn;
  Handle const dataset{open_in_place(name), H5Dclose};
  return shape_of(dataset.get(), name);
}

void File::require_shape(Shape const& found, Shape const& expected, std::string const& name) const {
  if (found != expected) {
    fail(fmt::format("{}: {} has the shape ({}), expected ({})", path_, name,
                     fmt::join(found, ", "), fmt::join(expected, ", ")));
  }
}

std::int64_t File::open_mapped(std::string const& name, Shape const& expected) const {
  require_own(name);
  Handle dataset{H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose};
  checked(dataset.get(), "open " + name);
  require_shape(shape_of(dataset.get(), name), expected, name);
  return dataset.release();
}

std::int64_t File::parts(std::string const& name, Shape const& expected) const {
  Turn const turn;
  std::string const action = "read the mappings of " + name;
  Handle const dataset{open_mapped(name, expected), H5Dclose};
  Handle const layout{H5Dget_create_plist(dataset.get()), H5Pclose};
  checked(layout.get(), action);
  std::size_t count = 0;
  checked(H5Pget_virtual_count(layout.get(), &count), action);
  return static_cast<std::int64_t>(count);
}

std::vector<float> File::read_mapped(std::string const& name, Shape const& expected) const {
  Turn const turn;
  Handle const dataset{open_mapped(name, expected), H5Dclose};
  std::vector<float> values(static_cast<std::size_t>(elements_of(expected)));
  checked(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
          "read " + name);
  return values;
}

}  // namespace offstage::h5
