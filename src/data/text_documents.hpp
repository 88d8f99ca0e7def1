#pragma once

#include <cstddef>
#include <string>

#include "data/byte_stream.hpp"

namespace offstage::data {

/// Rules for where a document of a text ends.
enum class Documents {
  file,   ///< the whole file
  line,   ///< a line
  blank,  ///< text between blank lines
  json,   ///< a line, which is a JSON object: the caller takes it apart
};

/// Reads a text document by document, without a byte order mark of UTF-8 at its begin.
/// Memory: one document, and 1 MiB.
/// Errors: DataError for a document beyond `largest_document` bytes; those of ByteStream.
class TextDocuments {
 public:
  static constexpr Bytes largest_document = GiB;

  TextDocuments(ByteStream& stream, Documents kind);

  struct Document {
    std::string text;
    std::string end;  ///< separator before the next document: line end and blank lines
  };
  /// Fetches the next one; false if there is none. All texts and ends together are the file, but
  /// for that mark.
  [[nodiscard]] bool next(Document& document);

 private:
  /// The next line with its end; empty at the end of the file.
  [[nodiscard]] bool next_line(std::string& line);
  [[nodiscard]] bool next_paragraph(Document& document);
  void check_size(Bytes bytes) const;
  /// False at the end of the stream.
  [[nodiscard]] bool fill();

  ByteStream& stream_;
  Documents kind_;
  std::string buffer_;
  std::size_t used_{};  ///< used bytes of the buffer
  bool is_begun_{};
  std::string line_;  ///< read already, and not given out
};

}  // namespace offstage::data
