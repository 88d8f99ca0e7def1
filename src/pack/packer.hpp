#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "data/text_documents.hpp"
#include "data/token_writer.hpp"
#include "data/tokenizer.hpp"

namespace offstage::pack {

struct Text {
  std::string path;
  data::Documents documents{};
};

struct Task {
  std::vector<Text> texts;     ///< in this order
  std::string key = "--from";  ///< named in errors
  std::string field = "text";  ///< of lines that are JSON
  data::Frame frame;           ///< around every document
  std::optional<std::int32_t>
      end;          ///< ends every document that has text, in the place of what parts documents
  int threads = 1;  ///< that encode, beside one that reads and the caller, who writes
};

struct Progress {
  Bytes read{};   ///< of the files, packed or not
  Bytes text{};   ///< of the documents
  Bytes total{};  ///< of the files
};

/// Turns texts into tokens. What is written depends on texts and tokenizer alone, in the texts'
/// order.
///
/// Memory:  text that is read and not written yet takes some 16 MiB per thread with its tokens, or
///          a document with its tokens where one is larger.
/// Threads: starts its own. `on_progress` is called by the caller's, after each part that is
///          written.
/// Errors:  DataError naming file and line for what is no text; those of ByteStream, Tokenizer and
///          TokenWriter. The first one in the order of the texts is thrown, whatever the threads
///          do.
Progress pack(Task const& task, data::Tokenizer const& tokenizer, data::TokenWriter& writer,
              std::function<void(Progress const&)> const& on_progress);

}  // namespace offstage::pack
