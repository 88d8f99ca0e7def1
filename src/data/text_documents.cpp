#include "data/text_documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.hpp"

namespace offstage::data {
namespace {

/// Where a line's end begins: "\n" or "\r\n".
std::size_t end_of_text(std::string const& line) {
  std::size_t size = line.size();
  size -= line.ends_with('\n') ? 1 : 0;
  bool const carriage = size < line.size() && size > 0 && line[size - 1] == '\r';
  return size - (carriage ? 1 : 0);
}

bool is_blank(std::string const& line) {
  return line.find_first_not_of(" \t\r\n") == std::string::npos;
}

}  // namespace

TextDocuments::TextDocuments(ByteStream& stream, Documents kind) : stream_{stream}, kind_{kind} {}

bool TextDocuments::fill() {
  buffer_.resize(static_cast<std::size_t>(MiB));
  buffer_.resize(stream_.read(std::as_writable_bytes(std::span{buffer_})));
  used_ = 0;
  if (!std::exchange(is_begun_, true) && buffer_.starts_with(byte_order_mark)) {
    buffer_.erase(0, byte_order_mark.size());
  }
  return !buffer_.empty();
}

void TextDocuments::check_size(Bytes bytes) const {
  if (bytes > largest_document) {
    stream_.file().fail(fmt::format(
        "has a document of more than {} bytes before byte {}; cut the file, or let lines or blank "
        "lines end documents (--documents=line, --documents=blank)",
        largest_document, stream_.done()));
  }
}

bool TextDocuments::next_line(std::string& line) {
  line.clear();
  for (;;) {
    if (used_ == buffer_.size() && !fill()) {
      return !line.empty();
    }
    auto const newline = buffer_.find('\n', used_);
    bool const ends = newline != std::string::npos;
    auto const size = (ends ? newline + 1 : buffer_.size()) - used_;
    check_size(static_cast<Bytes>(line.size() + size));
    line.append(buffer_, used_, size);
    used_ += size;
    if (ends) {
      return true;
    }
  }
}

/// Lines up to a blank one, and the blank ones behind them.
bool TextDocuments::next_paragraph(Document& document) {
  std::string line;
  while (!line_.empty() || next_line(line_)) {
    line.swap(line_);
    line_.clear();
    bool const blank = is_blank(line);
    if (!blank && !document.end.empty()) {
      line_.swap(line);  // the first one of the next document
      break;
    }
    check_size(static_cast<Bytes>(document.text.size() + document.end.size() + line.size()));
    (blank ? document.end : document.text) += line;
  }
  auto const size = end_of_text(document.text);
  std::string end{document.text, size};
  end += document.end;
  document.end.swap(end);
  document.text.resize(size);
  return !document.text.empty() || !document.end.empty();
}

bool TextDocuments::next(Document& document) {
  document.text.clear();
  document.end.clear();
  switch (kind_) {
    case Documents::file:
      check_size(stream_.file().size());  // before memory is filled
      document.text.reserve(static_cast<std::size_t>(stream_.file().size()));
      while (fill()) {
        check_size(static_cast<Bytes>(document.text.size() + buffer_.size()));
        document.text += buffer_;
      }
      return !document.text.empty();
    case Documents::line:
    case Documents::json:
      if (!next_line(document.text)) {
        return false;
      }
      document.end = document.text.substr(end_of_text(document.text));
      document.text.resize(end_of_text(document.text));
      return true;
    case Documents::blank:
      return next_paragraph(document);
  }
  return false;
}

}  // namespace offstage::data
