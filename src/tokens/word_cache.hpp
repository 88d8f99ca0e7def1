#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace offstage::tokens {

/// Tokens of words met before. It forgets all of them when it is full.
///
/// Memory:  some 3 MiB of usual words; the longest keys, each byte a token, take 12 MiB, or up to
///          twice that as vectors grow.
/// Threads: one.
class WordCache {
 public:
  /// Longer keys are not kept.
  static constexpr std::size_t longest_key = 64;

  WordCache();
  /// Valid until the next put().
  [[nodiscard]] std::optional<std::span<std::int32_t const>> find(std::string_view key) const;
  /// Keeps the tokens of a key that find() did not know.
  void put(std::string_view key, std::span<std::int32_t const> tokens);

 private:
  struct Slot {
    std::uint64_t hash{};  ///< 0: free
    std::uint32_t key{};   ///< where its bytes begin
    std::uint32_t tokens{};
    std::uint16_t key_size{};
    std::uint16_t count{};
  };
  [[nodiscard]] std::size_t place(std::uint64_t hash, std::string_view key) const;

  std::vector<Slot> slots_;
  std::vector<char> keys_;
  std::vector<std::int32_t> tokens_;
  std::size_t used_{};
};

/// A hash of 64 bits, never 0.
[[nodiscard]] std::uint64_t hash_bytes(std::string_view bytes);

}  // namespace offstage::tokens
