#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/held_out.hpp"
#include "data/token_file.hpp"
#include "data/window_packing.hpp"

namespace offstage::data {

struct DatasetOptions {
  /// "data.train". For an option, such as "--data", errors name options in place of keys.
  std::string key;
  Format format = Format::automatic;
  std::int64_t vocab{};
  std::int64_t sequence{};  ///< T
  WindowRule rule = WindowRule::crossing;
  /// data.attention=document: batches say where documents begin. Where windows hold one document
  /// alone, it changes nothing.
  bool documents_apart = false;
  std::int64_t keys_seen =
      0;  ///< model.window: most keys that a token sees, for FileFacts::attended
  /// data.separator: the token that ends a document, and belongs to it, where the format does not
  /// say.
  std::optional<std::int32_t> separator{};
  HeldOut held_out{};      ///< data.valid=N%
  bool uses_masks = true;  ///< data.mask: a mask beside a file says which of its tokens count
  bool verifies_masks{};   ///< reads files with masks through, and compares checksums

  /// The name of a key, or of the option in its place.
  [[nodiscard]] std::string named(std::string const& other_key) const {
    return key.starts_with("--") ? "--" + other_key.substr(other_key.find('.') + 1) : other_key;
  }
};

}  // namespace offstage::data
