#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "data/text_documents.hpp"
#include "data/token_writer.hpp"
#include "data/tokenizer.hpp"
#include "pack/template.hpp"

namespace offstage::pack {

struct Text {
  std::string path;
  data::Documents documents{};
};

struct Task {
  std::vector<Text> texts;     ///< in this order
  std::string key = "--from";  ///< named in errors
  std::string field = "text";  ///< of lines that are JSON; with a template: of their messages
  Template const* form{};      ///< null: lines are texts, not conversations
  std::int64_t longest{};      ///< tokens of a conversation; longer ones are left out; 0: none are
  data::Frame frame;           ///< around every document
  std::optional<std::int32_t>
      end;          ///< ends every document that has text, in the place of what parts documents
  int threads = 1;  ///< that encode, beside one that reads and the caller, who writes
};

/// What became of conversations; zeros without a template.
struct Conversations {
  std::int64_t counted{};     ///< tokens that count in the loss
  std::int64_t without{};     ///< left out: nothing of them counts
  std::int64_t too_long{};    ///< left out: longer than Task::longest
  std::int64_t straddling{};  ///< ConversationEncoder::Encoded
  std::string first_without;  ///< the place of the first of these
};

/// A place between two documents of the texts.
struct Place {
  std::size_t text{};        ///< number of texts before, whole ones
  std::int64_t documents{};  ///< documents of this text before
  std::uint64_t checksum{};  ///< XXH3 of these documents and what parts them
};

struct Progress {
  Place place;
  Bytes read{};   ///< bytes of the files, packed or not
  Bytes text{};   ///< bytes of the documents
  Bytes total{};  ///< bytes of all files
  Conversations conversations;
};

/// Turns texts into tokens, and with a template conversations into tokens and their mask. What is written depends on texts and tokenizer alone, in the texts'
/// order.
///
/// Resume:  `begin` is a progress that was told before; documents before its place are read again, as far as they lie in
///          the text of the place, and not written.
/// Memory:  text that is read and not written yet takes some 16 MiB per thread with its tokens, or
///          a document with its tokens where one is larger.
/// Threads: starts its own. `on_progress` is called by the caller's, after each part that is
///          written.
/// Errors:  DataError naming file and line for what is no text; DataError if documents before `begin` are others now; those of ByteStream, Tokenizer and
///          TokenWriter. The first one in the order of the texts is thrown, whatever the threads
///          do.
Progress pack(Task const& task, data::Tokenizer const& tokenizer, data::TokenWriter& writer,
              Progress const& begin, std::function<void(Progress const&)> const& on_progress);

}  // namespace offstage::pack
