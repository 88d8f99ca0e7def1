#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "data/byte_stream.hpp"
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
  std::vector<Text> texts;     ///< texts to pack, in this order
  std::string key = "--from";  ///< option that errors name
  /// Field of the text in JSON lines; with a template, of their messages.
  std::string field = "text";
  Template const* form{};  ///< null: lines are texts, not conversations
  std::int64_t longest{};  ///< tokens of a conversation; longer ones are left out; 0: none are
  data::Frame frame;       ///< tokens around every document
  /// Token that ends every document with text, in place of the separator.
  std::optional<std::int32_t> end;
  std::int64_t most_bad{};  ///< JSON lines that may be left out (Progress::bad)
  int threads = 1;  ///< threads that encode, beside one that reads and the caller, which writes
};

/// A number of things that were noticed, and where or what the first is.
struct Noticed {
  std::int64_t count{};
  std::string first;
};

/// Counts of conversations; zeros without a template.
struct Conversations {
  std::int64_t counted{};     ///< tokens that count in the loss
  Noticed without;            ///< conversations left out because nothing of them counts
  std::int64_t too_long{};    ///< conversations left out because they are longer than Task::longest
  std::int64_t straddling{};  ///< sum of ConversationEncoder::Encoded::straddling
  /// Times that fields were there and not used, by their names (Conversation::unused). Beyond
  /// most_unused names, new ones are not added.
  std::map<std::string, std::int64_t> unused;
  static constexpr std::size_t most_unused = 1000;
};

/// A place between two documents of the texts.
struct Place {
  std::size_t text{};        ///< number of whole texts before
  std::int64_t documents{};  ///< number of documents of this text before
  std::uint64_t checksum{};  ///< XXH3 of these documents and their separators
};

struct Progress {
  Place place;
  Bytes read{};     ///< bytes of the files, packed or not
  Bytes text{};     ///< bytes of the documents; of JSON, those of the lines
  Bytes encoded{};  ///< bytes of text that became tokens; 0 with a template
  Bytes total{};    ///< bytes of all files
  Conversations conversations;
  Noticed replaced;  ///< bytes that are no UTF-8, for which the tokenizer takes U+FFFD
  Noticed bad;       ///< JSON lines left out: they are no JSON, or lack what is to be packed
  Noticed specials;  ///< special tokens that texts and messages hold (Tokenizer::specials_in)
};

/// The bytes of a text, unpacked. A Parquet table comes as JSON lines: of texts with their column
/// alone. Errors: those of data::open_stream and parquet::open_rows.
[[nodiscard]] std::unique_ptr<data::ByteStream> open_text(Task const& task, Text const& text);

/// Turns texts into tokens, and with a template conversations into tokens and their mask. The files
/// depend on texts and tokenizer alone, and have the texts' order.
///
/// Resume:  `begin` is a progress that was reported before. Documents in the place's text before it
///          are read again, and not written.
/// Memory:  text that is read and not written yet takes some 16 MiB per thread with its tokens, or
///          the memory of one document with its tokens if that is larger.
/// Threads: starts its own. The caller's thread calls `on_progress` after each part that is
///          written, and `on_wait`, with the same, some times a second while it waits for the next.
/// Errors:  DataError naming file and line of bytes that are no text, or of bad lines beyond
///          Task::most_bad; DataError if documents before `begin` have changed; those of
///          ByteStream, Tokenizer and TokenWriter. The first one in the order of the texts is
///          thrown, whatever the threads do.
Progress pack(Task const& task, data::Tokenizer const& tokenizer, data::TokenWriter& writer,
              Progress const& begin, std::function<void(Progress const&)> const& on_progress,
              std::function<void(Progress const&)> const& on_wait);

}  // namespace offstage::pack
