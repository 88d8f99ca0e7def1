#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"

namespace offstage::h5 {

/// Number types in files, little-endian whatever the machine.
enum class Type { f32, f64, i64, u64, bf16, i8, u8 };

template <class T>
constexpr Type type_of();
template <>
constexpr Type type_of<float>() {
  return Type::f32;
}
template <>
constexpr Type type_of<double>() {
  return Type::f64;
}
template <>
constexpr Type type_of<std::int64_t>() {
  return Type::i64;
}
template <>
constexpr Type type_of<std::uint64_t>() {
  return Type::u64;
}

/// Extents of an array, outermost first.
using Shape = std::vector<std::int64_t>;

/// The product of the extents. Errors: PreconditionError if one is negative or it overflows.
[[nodiscard]] std::int64_t elements_of(Shape const& shape);

/// A box inside an array.
struct Block {
  Shape start;
  Shape count;
};

/// A part of a virtual array: the elements of `target` show those of `source`, row by row on both
/// sides, so the boxes hold equally many elements.
struct Mapping {
  Block target;
  std::string file;  ///< relative to the directory of the file that shows them
  std::string dataset;
  Shape shape;  ///< shape of that dataset
  Block source;
};

/// Opens the library, once, and turns off the error stack that it prints in this thread. A File
/// does the same. To be called before MPI begins: a parallel build of HDF5 that is opened later
/// calls MPI from whatever thread does so, and again at the end of MPI, where a file that could not
/// be closed crashes it.
void prepare_library() noexcept;

/// Owns one open HDF5 file; move-only. Arrays are contiguous and named by path ("/group/name");
/// groups in between come into being as needed. Attributes stand on the root group.
///
/// Format:  HDF5 1.10, with checksums on all metadata: damage there is an error, not other content.
///          Arrays have no times, nor has the root group, so that files of equal arrays at the root
///          are equal bytes. HDF5 gives times to the groups that it makes in between.
/// Locks:   the file locking of HDF5 is off: some file systems have none, and readers of a
///          read-only directory may not need it.
/// Writes:  every call that can write is checked, closing included, and HDF5 holds back no values
///          of arrays. A file that was closed without an error was handed to the operating system
///          whole; sync and read-back are the caller's.
/// Exit:    HDF5 runs nothing at the end of the process: what a failed write left open would crash
///          it.
/// Threads: any, for different files: one call of the process at a time (Turn).
/// Errors:  of files opened for writing IoError. Of files opened to read IoError with its errno if
///          the system failed to read or had no memory, DataError if the file is not there or not
///          what it should be. All name the path and HDF5's innermost reason. HDF5 itself prints
///          nothing.
/// Memory:  a file is opened only where there are 32 MiB to spare: HDF5 1.10 does not survive an
///          allocation that fails.
/// Forged:  a file is opened only if it is a regular one (no link, no pipe), and what is read lies
///          in it: an array that is reached by a soft or external link, stands in other files, in
///          pieces or behind a filter, or has another type than it is read as, is an error. HDF5
///          itself trusts metadata whose checksum holds: a file that was made to crash it does
///          (tests/fuzz/README.md).
class File {
 public:
  /// Arrays of at least `threshold` bytes start at multiples of `alignment`. HDF5's own bookkeeping
  /// is set aside `bookkeeping` bytes at a time, so that as long as these suffice nothing comes
  /// between arrays that are reserved one after the other.
  struct Alignment {
    Bytes threshold = 1;
    Bytes alignment = 1;
    Bytes bookkeeping = 2 * KiB;
  };

  /// A new file; that it exists already is an error.
  [[nodiscard]] static File create(std::string const& path, Alignment alignment);
  [[nodiscard]] static File create(std::string const& path) { return create(path, {}); }
  [[nodiscard]] static File open_read(std::string const& path);
  [[nodiscard]] static File open_read_write(std::string const& path);
  /// A file in memory alone; errors call it `name`.
  [[nodiscard]] static File create_in_memory(std::string const& name);
  /// The bytes of a file as they would stand on a disk.
  [[nodiscard]] std::string image() const;
  /// Opens a copy of such bytes to read; errors call it `name`.
  [[nodiscard]] static File open_image(std::string const& bytes, std::string const& name);
  ~File() { reset(); }

  File(File const&) = delete;
  File& operator=(File const&) = delete;
  File(File&& other) noexcept
      : id_{std::exchange(other.id_, -1)},
        writable_{other.writable_},
        path_{std::move(other.path_)} {}
  File& operator=(File&& other) noexcept {
    File taken{std::move(other)};
    std::swap(id_, taken.id_);
    std::swap(writable_, taken.writable_);
    std::swap(path_, taken.path_);
    return *this;
  }

  /// Writes what HDF5 still holds and closes. A writer calls this: the destructor hides errors.
  void close();

  /// A new array whose bytes someone else writes: allocated now and never filled. Returns the
  /// offset of its first byte in the file.
  Bytes reserve(std::string const& name, Type type, Shape const& shape);
  /// A new array that shows parts of other files, of this type too; what no part covers, and every
  /// part whose file is missing, reads as NaN, or as 0 where there is none.
  void map(std::string const& name, Type type, Shape const& shape, std::span<Mapping const> parts);
  /// How many parts such an array of this shape shows.
  [[nodiscard]] std::int64_t parts(std::string const& name, Shape const& expected) const;

  /// A new array.
  template <class T>
  void write(std::string const& name, Shape const& shape, std::span<T const> values) {
    reserve(name, type_of<T>(), shape);
    fill<T>(name, values);
  }
  void write(std::string const& name, std::span<std::string const> texts);
  /// All elements of an array that is there.
  template <class T>
  void fill(std::string const& name, std::span<T const> values) {
    put(name, type_of<T>(), values.data(), static_cast<std::int64_t>(values.size()));
  }

  [[nodiscard]] Shape shape(std::string const& name) const;
  /// Where the first byte of an array of this type and shape stands, for whoever reads around HDF5.
  [[nodiscard]] Bytes offset(std::string const& name, Type type, Shape const& expected) const;
  /// The whole array. Another shape than `expected` is an error: nothing is allocated on a damaged
  /// file's word.
  template <class T>
  [[nodiscard]] std::vector<T> read(std::string const& name, Shape const& expected) const {
    (void)offset(name, type_of<T>(), expected);
    std::vector<T> values(static_cast<std::size_t>(elements_of(expected)));
    get(name, type_of<T>(), values.data());
    return values;
  }
  /// The whole of an array that map() made; opens the files that it shows.
  [[nodiscard]] std::vector<float> read_mapped(std::string const& name,
                                               Shape const& expected) const;
  /// Texts of at most `widest` bytes each.
  [[nodiscard]] std::vector<std::string> read_texts(std::string const& name, std::int64_t expected,
                                                    std::size_t widest = 255) const;

  template <class T>
  void set(std::string const& attribute, T value) {
    put_attribute(attribute, type_of<T>(), &value);
  }
  void set(std::string const& attribute, std::string const& text);
  template <class T>
  [[nodiscard]] T number(std::string const& attribute) const {
    T value{};
    get_attribute(attribute, type_of<T>(), &value);
    return value;
  }
  /// Errors: also if it is longer than 16 MiB.
  [[nodiscard]] std::string text(std::string const& attribute) const;
  [[nodiscard]] bool has(std::string const& attribute) const;

 private:
  File(std::int64_t id, bool writable, std::string path)
      : id_{id}, writable_{writable}, path_{std::move(path)} {}
  static File open(std::string const& path, bool writable);
  void reset() noexcept;

  void put(std::string const& name, Type type, void const* values, std::int64_t count);
  void get(std::string const& name, Type type, void* values) const;
  void put_attribute(std::string const& name, Type type, void const* value);
  void get_attribute(std::string const& name, Type type, void* value) const;
  [[nodiscard]] Shape shape_of(std::int64_t dataset, std::string const& name) const;
  void require_shape(Shape const& found, Shape const& expected, std::string const& name) const;
  void require_regular() const;
  void require_own(std::string const& name) const;
  /// The identifier of an array whose bytes stand in this file, in one piece.
  [[nodiscard]] std::int64_t open_in_place(std::string const& name) const;
  [[nodiscard]] std::int64_t open_mapped(std::string const& name, Shape const& expected) const;
  void require_size(std::int64_t dataset, std::string const& name, Bytes bytes) const;

  /// `result` unless it says that an HDF5 call failed; the error reads "PATH: cannot <action>:
  /// why".
  std::int64_t checked(std::int64_t result, std::string const& action) const;
  /// The same as a function of the result alone: one for all calls of an action.
  [[nodiscard]] auto checks(char const* verb, std::string const& name) const {
    return [this, action = std::string{verb} + ' ' + name](std::int64_t result) {
      return checked(result, action);
    };
  }
  [[noreturn]] void fail(std::string const& message, int error_number = 0) const;

  std::int64_t id_{-1};
  bool writable_{};
  std::string path_;
};

}  // namespace offstage::h5
