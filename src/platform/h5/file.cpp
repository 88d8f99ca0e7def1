#include "platform/h5/file.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string_view>
#include <type_traits>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "platform/h5/handle.hpp"
#include "platform/h5/reason.hpp"

namespace offstage::h5 {
namespace {

static_assert(std::is_same_v<hid_t, std::int64_t>);
using Dimensions = std::vector<hsize_t>;

constexpr Bytes longest_text = 16 * MiB;

/// HDF5 1.10 does not survive that the system has no memory: from then on it can open nothing in
/// this process, or it crashes. Errors: IoError.
void require_memory(std::string const& path) {
  if (!has_memory_to_spare()) {
    throw IoError{"out of memory, cannot open", path, ENOMEM};
  }
}

/// True if the path leads to no file, whoever asks and whenever.
bool is_no_file(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR || error_number == EISDIR ||
         error_number == ELOOP || error_number == ENXIO;
}

/// Of files, but for bf16, which HDF5 does not know.
hid_t base_type(Type type) {
  switch (type) {
    case Type::f32:
    case Type::bf16:
      return H5T_IEEE_F32LE;
    case Type::f64:
      return H5T_IEEE_F64LE;
    case Type::i64:
      return H5T_STD_I64LE;
    case Type::u64:
      return H5T_STD_U64LE;
    case Type::i8:
      return H5T_STD_I8LE;
    case Type::u8:
      return H5T_STD_U8LE;
  }
  return -1;
}

/// Of values that are held in memory.
hid_t memory_type(Type type) {
  switch (type) {
    case Type::f32:
      return H5T_NATIVE_FLOAT;
    case Type::f64:
      return H5T_NATIVE_DOUBLE;
    case Type::i64:
      return H5T_NATIVE_INT64;
    case Type::u64:
      return H5T_NATIVE_UINT64;
    case Type::i8:
      return H5T_NATIVE_INT8;
    case Type::u8:
      return H5T_NATIVE_UINT8;
    case Type::bf16:  // files alone have them
      return -1;
  }
  return -1;
}

Dimensions dimensions_of(Shape const& shape) {
  return {shape.begin(), shape.end()};
}

// HDF5 fails at any of the calls below where memory ends. `check` is File::checked with the action
// that they serve: a default in the place of a setting that could not be made would be another
// file.

template <class Check>
Handle space_of(Shape const& shape, Check const& check) {
  Dimensions const dims = dimensions_of(shape);
  Handle space{H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
  check(space.get());
  return space;
}

template <class Check>
Handle scalar_space(Check const& check) {
  Handle space{H5Screate(H5S_SCALAR), H5Sclose};
  check(space.get());
  return space;
}

template <class Check>
Handle property_list(hid_t kind, Check const& check) {
  Handle list{H5Pcreate(kind), H5Pclose};
  check(list.get());
  return list;
}

/// A property list of files and datasets without times.
template <class Check>
Handle creation_list(hid_t kind, Check const& check) {
  Handle list = property_list(kind, check);
  check(H5Pset_obj_track_times(list.get(), false));
  return list;
}

/// A space in which `block` is selected; negative if it does not lie inside.
template <class Check>
Handle selection_of(Shape const& shape, Block const& block, Check const& check) {
  Handle space = space_of(shape, check);
  Dimensions const start = dimensions_of(block.start);
  Dimensions const count = dimensions_of(block.count);
  if (start.size() != shape.size() || count.size() != shape.size()) {
    return {-1, H5Sclose};
  }
  check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                            nullptr));
  if (check(H5Sselect_valid(space.get())) == 0) {
    return {-1, H5Sclose};
  }
  return space;
}

template <class Check>
Handle file_type(Type type, Check const& check) {
  Handle made{H5Tcopy(base_type(type)), H5Tclose};
  check(made.get());
  if (type == Type::bf16) {  // the upper half of an FP32: the exponent's bias stays
    check(H5Tset_fields(made.get(), 15, 7, 8, 0, 7));
    check(H5Tset_precision(made.get(), 16));
    check(H5Tset_size(made.get(), 2));
  }
  return made;
}

/// A string of fixed size: it lies in the checksummed metadata, a variable one would not.
template <class Check>
Handle text_type(std::size_t size, Check const& check) {
  Handle type{H5Tcopy(H5T_C_S1), H5Tclose};
  check(type.get());
  check(H5Tset_size(type.get(), std::max<std::size_t>(1, size)));
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD));
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

/// The size of a fixed string type; 0 if it is another type.
std::size_t text_size(hid_t type) {
  bool const fixed = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
  return fixed ? H5Tget_size(type) : 0;
}

std::string without_padding(std::string text) {
  text.erase(std::min(text.find('\0'), text.size()));
  return text;
}

/// The cache of metadata counts bytes in the file: a mapped array takes some 50 times as much in
/// memory, and by default 32 MiB of them stay, outside of every plan. A checkpoint's are hardly
/// looked at again.
template <class Check>
void keep_metadata_small(hid_t list, Check const& check) {
  H5AC_cache_config_t config{};
  config.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  check(H5Pget_mdc_config(list, &config));
  config.set_initial_size = true;
  config.initial_size = config.min_size = config.max_size = static_cast<std::size_t>(64 * KiB);
  config.incr_mode = H5C_incr__off;
  config.flash_incr_mode = H5C_flash_incr__off;
  config.decr_mode = H5C_decr__off;
  check(H5Pset_mdc_config(list, &config));
}

template <class Check>
Handle access_list(File::Alignment alignment, Check const& check) {
  Handle list = property_list(H5P_FILE_ACCESS, check);
  keep_metadata_small(list.get(), check);
  check(H5Pset_libver_bounds(list.get(), H5F_LIBVER_V18, H5F_LIBVER_V110));
  check(H5Pset_file_locking(list.get(), false, true));
  check(H5Pset_alignment(list.get(), static_cast<hsize_t>(alignment.threshold),
                         static_cast<hsize_t>(alignment.alignment)));
  check(H5Pset_meta_block_size(list.get(), static_cast<hsize_t>(alignment.bookkeeping)));
  // Values go to the system by the call that writes them, which says whether it could.
  check(H5Pset_sieve_buf_size(list.get(), 0));
  // A file that is closed after an error takes along what is still open in it.
  check(H5Pset_fclose_degree(list.get(), H5F_CLOSE_STRONG));
  return list;
}

/// HDF5 takes no bytes in the place of a file that is there.
std::string no_file(std::string const& name) {
  return name + " in memory";
}

template <class Check>
Handle groups_as_needed(Check const& check) {
  Handle list = property_list(H5P_LINK_CREATE, check);
  check(H5Pset_create_intermediate_group(list.get(), 1));
  return list;
}

}  // namespace

std::recursive_mutex& Turn::library() {
  static std::recursive_mutex mutex;
  return mutex;
}

void prepare_library() noexcept {
  [[maybe_unused]] static bool const is_open = [] {
    H5dont_atexit();
    // A file names filters by their numbers, for groups too, and HDF5 would load the plugins.
    return H5open() >= 0 && H5PLset_loading_state(0) >= 0;
  }();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::int64_t elements_of(Shape const& shape) {
  std::int64_t product = 1;
  for (std::int64_t const extent : shape) {
    require(extent >= 0 && !__builtin_mul_overflow(product, extent, &product),
            "h5: an extent is negative or the array too large");
  }
  return product;
}

File File::create(std::string const& path, Alignment alignment) {
  Turn const turn;
  require_memory(path);
  prepare_library();
  File file{-1, true, path};
  auto const check = [&](std::int64_t result) { return file.checked(result, "create the file"); };
  Handle const access = access_list(alignment, check);
  Handle const untimed = creation_list(H5P_FILE_CREATE, check);
  file.id_ = H5Fcreate(path.c_str(), H5F_ACC_EXCL, untimed.get(), access.get());
  check(file.id_);
  return file;
}

File File::open(std::string const& path, bool writable) {
  Turn const turn;
  require_memory(path);
  prepare_library();
  File file{-1, writable, path};
  file.require_regular();
  // No failure before the file is looked at says anything about it.
  Handle const access = access_list({}, [&](std::int64_t result) {
    if (result < 0) {
      Reason const reason = innermost_reason();
      throw IoError{fmt::format("{}: cannot prepare to open the file: {}", path, reason.text),
                    ENOMEM};
    }
  });
  file.id_ = H5Fopen(path.c_str(), writable ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access.get());
  file.checked(file.id_, "open the file");
  return file;
}

File File::open_read(std::string const& path) {
  return open(path, false);
}
File File::open_read_write(std::string const& path) {
  return open(path, true);
}

File File::create_in_memory(std::string const& name) {
  Turn const turn;
  require_memory(name);
  prepare_library();
  File file{-1, true, name};
  auto const check = [&](std::int64_t result) { return file.checked(result, "make the file"); };
  Handle const access = access_list({}, check);
  check(H5Pset_fapl_core(access.get(), static_cast<std::size_t>(64 * KiB), 0));
  // H5Fget_file_image clears a flag in the superblock but leaves its checksum, which the oldest
  // kind does not have.
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V110));
  file.id_ = H5Fcreate(no_file(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get());
  check(file.id_);
  return file;
}

std::string File::image() const {
  Turn const turn;
  auto const check = checks("copy", "the file");
  check(H5Fflush(id_, H5F_SCOPE_LOCAL));
  std::string bytes(static_cast<std::size_t>(check(H5Fget_file_image(id_, nullptr, 0))), '\0');
  check(H5Fget_file_image(id_, bytes.data(), bytes.size()));
  return bytes;
}

File File::open_image(std::string const& bytes, std::string const& name) {
  Turn const turn;
  require_memory(name);
  prepare_library();
  File file{-1, false, name};
  auto const check = [&](std::int64_t result) { return file.checked(result, "open the copy"); };
  Handle const access = access_list({}, check);
  check(H5Pset_fapl_core(access.get(), static_cast<std::size_t>(64 * KiB), 0));
  std::string copy = bytes;  // HDF5 takes a pointer to what is not const
  check(H5Pset_file_image(access.get(), copy.data(), copy.size()));
  file.id_ = H5Fopen(no_file(name).c_str(), H5F_ACC_RDONLY, access.get());
  check(file.id_);
  return file;
}

void File::close() {
  Turn const turn;
  checked(H5Fclose(std::exchange(id_, -1)), "write and close the file");
}

void File::reset() noexcept {
  Turn const turn;
  if (id_ >= 0) {
    H5Fclose(id_);
  }
  id_ = -1;
}

void File::fail(std::string const& message, int error_number) const {
  if (writable_ || (error_number != 0 && !is_no_file(error_number))) {
    throw IoError{message, error_number};
  }
  throw DataError{message};
}

std::int64_t File::checked(std::int64_t result, std::string const& action) const {
  if (result < 0) {
    Reason const reason = innermost_reason();
    bool const has_remedy = reason.error_number == ENOSPC || reason.error_number == EMFILE;
    fail(fmt::format("{}: cannot {}: {}", path_, action,
                     has_remedy ? error_text(reason.error_number, path_) : reason.text),
         reason.error_number);
  }
  return result;
}

Bytes File::reserve(std::string const& name, Type type, Shape const& shape) {
  Turn const turn;
  auto const check = checks("create", name);
  require(elements_of(shape) > 0, "h5: an array of no elements has no place in the file");
  Handle const space = space_of(shape, check);
  Handle const links = groups_as_needed(check);
  Handle const layout = creation_list(H5P_DATASET_CREATE, check);
  check(H5Pset_layout(layout.get(), H5D_CONTIGUOUS));
  check(H5Pset_alloc_time(layout.get(), H5D_ALLOC_TIME_EARLY));
  check(H5Pset_fill_time(layout.get(), H5D_FILL_TIME_NEVER));
  Handle const stored = file_type(type, check);
  Handle dataset{H5Dcreate2(id_, name.c_str(), stored.get(), space.get(), links.get(), layout.get(),
                            H5P_DEFAULT),
                 H5Dclose};
  check(dataset.get());
  haddr_t const offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) {
    fail(fmt::format("{}: {} has no place in the file", path_, name));
  }
  check(dataset.finish());
  return static_cast<Bytes>(offset);
}

void File::map(std::string const& name, Type type, Shape const& shape,
               std::span<Mapping const> parts) {
  Turn const turn;
  auto const check = checks("create", name);
  Handle const layout = creation_list(H5P_DATASET_CREATE, check);
  if (type == Type::f32 || type == Type::bf16) {  // nothing else tells a missing file from zeros
    float const missing = std::numeric_limits<float>::quiet_NaN();
    check(H5Pset_fill_value(layout.get(), H5T_NATIVE_FLOAT, &missing));
  }
  for (Mapping const& part : parts) {
    Handle const target = selection_of(shape, part.target, check);
    Handle const source = selection_of(part.shape, part.source, check);
    require(target.get() >= 0 && source.get() >= 0, "h5: a mapping reaches outside its array");
    check(H5Pset_virtual(layout.get(), target.get(), part.file.c_str(), part.dataset.c_str(),
                         source.get()));
  }
  Handle const space = space_of(shape, check);
  Handle const links = groups_as_needed(check);
  Handle const stored = file_type(type, check);
  Handle dataset{H5Dcreate2(id_, name.c_str(), stored.get(), space.get(), links.get(), layout.get(),
                            H5P_DEFAULT),
                 H5Dclose};
  check(dataset.get());
  check(dataset.finish());
}

void File::put(std::string const& name, Type type, void const* values, std::int64_t count) {
  Turn const turn;
  auto const check = checks("write", name);
  Handle dataset{H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose};
  check(dataset.get());
  require(elements_of(shape(name)) == count, "h5: as many values as elements");
  check(H5Dwrite(dataset.get(), memory_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, values));
  check(dataset.finish());
}

void File::write(std::string const& name, std::span<std::string const> texts) {
  Turn const turn;
  std::size_t width = 1;
  for (std::string const& text : texts) {
    width = std::max(width, text.size());
  }
  std::string joined;
  for (std::string const& text : texts) {
    joined += text;
    joined.resize(joined.size() + width - text.size(), '\0');
  }
  auto const check = checks("write", name);
  Handle const type = text_type(width, check);
  Handle const space = space_of({static_cast<std::int64_t>(texts.size())}, check);
  Handle const links = groups_as_needed(check);
  Handle const untimed = creation_list(H5P_DATASET_CREATE, check);
  Handle dataset{H5Dcreate2(id_, name.c_str(), type.get(), space.get(), links.get(), untimed.get(),
                            H5P_DEFAULT),
                 H5Dclose};
  check(dataset.get());
  check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, joined.data()));
  check(dataset.finish());
}

Bytes File::offset(std::string const& name, Type type, Shape const& expected) const {
  Turn const turn;
  Handle const dataset{open_in_place(name), H5Dclose};
  require_shape(shape_of(dataset.get(), name), expected, name);
  auto const check = checks("read the type of", name);
  Handle const stored{H5Dget_type(dataset.get()), H5Tclose};
  check(stored.get());
  Handle const wanted = file_type(type, check);
  if (check(H5Tequal(stored.get(), wanted.get())) == 0) {
    fail(fmt::format("{}: {} has an unexpected type", path_, name));
  }
  require_size(dataset.get(), name,
               elements_of(expected) * static_cast<Bytes>(H5Tget_size(stored.get())));
  haddr_t const offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF || offset > static_cast<haddr_t>(std::numeric_limits<Bytes>::max())) {
    fail(fmt::format("{}: {} has no place in the file", path_, name));
  }
  return static_cast<Bytes>(offset);
}

void File::get(std::string const& name, Type type, void* values) const {
  Turn const turn;
  Handle const dataset{open_in_place(name), H5Dclose};
  checked(H5Dread(dataset.get(), memory_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, values),
          "read " + name);
}

std::vector<std::string> File::read_texts(std::string const& name, std::int64_t expected,
                                          std::size_t widest) const {
  Turn const turn;
  Handle const dataset{open_in_place(name), H5Dclose};
  require_shape(shape_of(dataset.get(), name), {expected}, name);
  Handle const type{H5Dget_type(dataset.get()), H5Tclose};
  checked(type.get(), "read the type of " + name);
  std::size_t const width = text_size(type.get());
  if (width == 0 || width > widest) {
    fail(fmt::format("{}: {} holds no texts of at most {} bytes", path_, name, widest));
  }
  require_size(dataset.get(), name, expected * static_cast<std::int64_t>(width));
  std::string joined(width * static_cast<std::size_t>(expected), '\0');
  checked(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, joined.data()),
          "read " + name);
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < joined.size(); begin += width) {
    texts.push_back(without_padding(joined.substr(begin, width)));
  }
  return texts;
}

void File::put_attribute(std::string const& name, Type type, void const* value) {
  Turn const turn;
  auto const check = checks("write attribute", name);
  Handle const space = scalar_space(check);
  Handle const stored = file_type(type, check);
  Handle attribute{
      H5Acreate2(id_, name.c_str(), stored.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  check(attribute.get());
  check(H5Awrite(attribute.get(), memory_type(type), value));
  check(attribute.finish());
}

void File::get_attribute(std::string const& name, Type type, void* value) const {
  Turn const turn;
  auto const check = checks("read attribute", name);
  Handle const attribute{H5Aopen(id_, name.c_str(), H5P_DEFAULT), H5Aclose};
  check(attribute.get());
  Handle const stored{H5Aget_type(attribute.get()), H5Tclose};
  check(stored.get());
  Handle const space{H5Aget_space(attribute.get()), H5Sclose};
  check(space.get());
  Handle const wanted = file_type(type, check);
  if (check(H5Tequal(stored.get(), wanted.get())) == 0 ||
      H5Sget_simple_extent_npoints(space.get()) != 1) {
    fail(fmt::format("{}: attribute {} is not a number of the expected type", path_, name));
  }
  check(H5Aread(attribute.get(), memory_type(type), value));
}

bool File::has(std::string const& attribute) const {
  Turn const turn;
  return checks("look for attribute", attribute)(H5Aexists(id_, attribute.c_str())) > 0;
}

void File::set(std::string const& attribute, std::string const& text) {
  Turn const turn;
  auto const check = checks("write attribute", attribute);
  Handle const space = scalar_space(check);
  Handle const type = text_type(text.size(), check);
  Handle handle{
      H5Acreate2(id_, attribute.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose};
  check(handle.get());
  check(H5Awrite(handle.get(), type.get(), text.c_str()));
  check(handle.finish());
}

std::string File::text(std::string const& attribute) const {
  Turn const turn;
  auto const check = checks("read attribute", attribute);
  Handle const handle{H5Aopen(id_, attribute.c_str(), H5P_DEFAULT), H5Aclose};
  check(handle.get());
  Handle const type{H5Aget_type(handle.get()), H5Tclose};
  check(type.get());
  Handle const space{H5Aget_space(handle.get()), H5Sclose};
  check(space.get());
  std::size_t const size = text_size(type.get());
  if (size == 0 || size > static_cast<std::size_t>(longest_text) ||
      H5Sget_simple_extent_npoints(space.get()) != 1) {
    fail(fmt::format("{}: attribute {} is not a text of at most {}", path_, attribute,
                     format_bytes(longest_text)));
  }
  std::string text(size, '\0');
  check(H5Aread(handle.get(), type.get(), text.data()));
  return without_padding(std::move(text));
}

}  // namespace offstage::h5
