#include "tokens/word_cache.hpp"

#include <algorithm>
#include <cstring>

namespace offstage::tokens {
namespace {

constexpr std::size_t slots = std::size_t{1} << 16;
constexpr std::size_t most_used = slots / 2;
constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;

std::uint64_t mix(std::uint64_t a) {
  a = (a ^ (a >> 32)) * odd;
  return a ^ (a >> 29);
}

std::uint64_t load(char const* bytes, std::size_t count) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) {
  std::uint64_t hash = bytes.size() * odd;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    hash = mix(hash ^ load(bytes.data() + at, 8));
  }
  if (at < bytes.size()) {
    hash = mix(hash ^ load(bytes.data() + at, bytes.size() - at));
  }
  return mix(hash) | 1;
}

WordCache::WordCache() : slots_(slots) {}

std::size_t WordCache::place(std::uint64_t hash, std::string_view key) const {
  for (std::size_t i = static_cast<std::size_t>(hash >> 40) % slots;; i = (i + 1) % slots) {
    Slot const& slot = slots_[i];
    bool const same = slot.hash == hash && slot.key_size == key.size() &&
                      std::memcmp(keys_.data() + slot.key, key.data(), key.size()) == 0;
    if (slot.hash == 0 || same) {
      return i;
    }
  }
}

std::optional<std::span<std::int32_t const>> WordCache::find(std::string_view key) const {
  if (key.size() > longest_key) {
    return std::nullopt;
  }
  Slot const& slot = slots_[place(hash_bytes(key), key)];
  if (slot.hash == 0) {
    return std::nullopt;
  }
  return std::span{tokens_}.subspan(slot.tokens, slot.count);
}

void WordCache::put(std::string_view key, std::span<std::int32_t const> tokens) {
  if (key.size() > longest_key || tokens.size() > 4 * longest_key) {
    return;
  }
  if (used_ == most_used) {
    std::ranges::fill(slots_, Slot{});
    keys_.clear();
    tokens_.clear();
    used_ = 0;
  }
  auto const hash = hash_bytes(key);
  slots_[place(hash, key)] = {.hash = hash,
                              .key = static_cast<std::uint32_t>(keys_.size()),
                              .tokens = static_cast<std::uint32_t>(tokens_.size()),
                              .key_size = static_cast<std::uint16_t>(key.size()),
                              .count = static_cast<std::uint16_t>(tokens.size())};
  keys_.insert(keys_.end(), key.begin(), key.end());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ++used_;
}

}  // namespace offstage::tokens
