#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "parquet/damage.hpp"

namespace offstage::parquet {

/// Types of Thrift's compact protocol, as they stand before a value.
enum class Kind : std::uint8_t {
  yes = 1,  ///< a field that is true
  no = 2,
  byte = 3,
  int16 = 4,
  int32 = 5,
  int64 = 6,
  number = 7,
  binary = 8,
  list = 9,
  set = 10,
  map = 11,
  structure = 12,
};

/// The bytes end before what they hold does.
class Cut : public Damage {
 public:
  Cut() : Damage{"it ends early"} {}
};

/// Takes numbers and bytes from the front of `bytes`. Source: Thrift's compact protocol,
/// github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
/// Errors: Damage; Cut.
class Thrift {
 public:
  explicit Thrift(std::span<std::byte const> bytes) : bytes_{bytes} {}

  struct Field {
    int id{};
    Kind kind{};
  };

  /// Calls `use(field)` for each field of a structure. It takes the value and returns true, or
  /// takes nothing and returns false.
  template <class Use>
  void structure(Use const& use) {
    Depth const depth{*this};
    Field field;
    while (next(field)) {
      if (!use(field)) {
        skip(field.kind);
      }
    }
  }
  /// The same for a field that is a structure.
  template <class Use>
  void structure(Field const& field, Use const& use) {
    require(field, Kind::structure);
    structure(use);
  }
  /// Calls `use()` for each element of a list, which takes it.
  template <class Use>
  void list(Field const& field, Kind element, Use const& use) {
    require(field, Kind::list);
    for (std::int64_t left = list_size(element); left > 0; --left) {
      use();
    }
  }
  /// The number of a field that is an integer, and where its value belongs.
  struct Wanted {
    int id{};
    std::int64_t* value{};
  };
  /// Takes the field if it is one of these; else nothing, and returns false.
  bool take(Field const& field, std::initializer_list<Wanted> wanted);
  [[nodiscard]] std::int64_t integer(Field const& field);
  [[nodiscard]] bool truth(Field const& field);
  [[nodiscard]] std::string text(Field const& field);
  /// An element of a list.
  [[nodiscard]] std::string text();
  /// Throws Damage unless the field has this kind.
  static void require(Field const& field, Kind kind);

  [[nodiscard]] std::uint64_t varint();
  [[nodiscard]] std::int64_t zigzag();
  [[nodiscard]] std::span<std::byte const> take(std::uint64_t count);
  /// Number of bytes that were taken.
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  /// Bounds how deep structures lie in each other.
  class Depth {
   public:
    explicit Depth(Thrift& of);
    ~Depth() { --of_.depth_; }
    Depth(Depth const&) = delete;
    Depth& operator=(Depth const&) = delete;

   private:
    Thrift& of_;
  };

  [[nodiscard]] std::uint8_t octet();
  /// False at the end of the structure. `field` holds the one before, at first zeros.
  [[nodiscard]] bool next(Field& field);
  [[nodiscard]] std::int64_t list_size(Kind element);
  void skip(Kind kind);
  void skip_elements(Kind kind);

  std::span<std::byte const> bytes_;
  std::size_t used_{};
  int depth_{};
};

}  // namespace offstage::parquet
