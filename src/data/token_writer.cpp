#include "data/token_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "base/regular_file.hpp"
#include "base/units.hpp"
#include "data/llmc_header.hpp"
#include "data/loss_mask.hpp"
#include "data/megatron_index.hpp"
#include "data/part_file.hpp"
#include "platform/aio/file.hpp"

namespace offstage::data {
namespace {

constexpr std::int64_t largest_i32 = std::numeric_limits<std::int32_t>::max();

template <class T>
std::span<std::byte const> bytes_of(T const& value) {
  return std::as_bytes(std::span{&value, 1});
}

std::optional<Bytes> begun_bytes(std::optional<Written> const& begun, Bytes header, Bytes rest) {
  if (!begun) {
    return std::nullopt;
  }
  return begun->tokens == 0 ? 0 : header + rest;
}

/// The index, in the order in which it comes to be: lengths while documents come, the rest at the
/// end.
class IndexWriter {
 public:
  IndexWriter(std::string const& path, TokenType type, std::optional<Written> const& begun)
      : file_{path, begun_bytes(begun, megatron_header_bytes, begun ? 4 * begun->documents : 0)},
        type_{type} {
    if (begun && begun->tokens > 0) {
      count_ = begun->documents;
    } else {
      file_.append(std::array<std::byte, megatron_header_bytes>{});
    }
  }

  void add(std::int64_t length) {
    file_.append(bytes_of(static_cast<std::int32_t>(length)));
    ++count_;
  }

  void finish() {
    file_.flush();
    write_pointers();
    for (std::int64_t i = 0; i <= count_; ++i) {
      file_.append(bytes_of(i));
    }
    file_.write_at(0, std::as_bytes(std::span{megatron_magic}));
    file_.write_at(9, bytes_of(std::uint64_t{1}));
    file_.write_at(17, bytes_of(megatron_code(type_)));
    file_.write_at(18, bytes_of(count_));
    file_.write_at(26, bytes_of(count_ + 1));
  }

  [[nodiscard]] PartFile& file() noexcept { return file_; }
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  void write_pointers() {
    std::vector<std::int32_t> lengths(
        static_cast<std::size_t>(std::min<std::int64_t>(count_, 65'536)));
    std::int64_t pointer{};
    for (std::int64_t i = 0; i < count_; i += std::ssize(lengths)) {
      auto const piece = std::span{lengths}.first(
          static_cast<std::size_t>(std::min<std::int64_t>(count_ - i, std::ssize(lengths))));
      file_.read_at(megatron_header_bytes + 4 * i, std::as_writable_bytes(piece));
      for (auto const length : piece) {
        file_.append(bytes_of(pointer));
        pointer += length * size_of(type_);
      }
    }
  }

  PartFile file_;
  TokenType type_;
  std::int64_t count_{};
};

/// The mask, whose header comes last.
class MaskWriter {
 public:
  MaskWriter(std::string const& path, std::optional<Written> const& begun)
      : file_{path, begun_bytes(begun, mask_header_bytes, begun ? begun->tokens : 0)} {
    if (!begun || begun->tokens == 0) {
      file_.append(std::array<std::byte, mask_header_bytes>{});
    }
  }

  void add(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask) {
    require(mask.size() == tokens.size() &&
                std::ranges::all_of(mask, [](std::uint8_t byte) { return byte <= 1; }),
            "TokenWriter: 0 or 1 for each token");
    count(tokens, mask);
    file_.append(std::as_bytes(mask));
  }
  /// Counts tokens whose mask is in the file already.
  void count_again(std::span<std::int32_t const> tokens) {
    std::vector<std::uint8_t> mask(tokens.size());
    file_.read_at(mask_header_bytes + static_cast<Bytes>(count_),
                  std::as_writable_bytes(std::span{mask}));
    count(tokens, mask);
  }

  void finish() {
    if (counted_ == 0) {
      throw DataError{fmt::format("{}: no token counts in the loss", file_.path())};
    }
    file_.flush();
    file_.write_at(0, std::as_bytes(std::span{mask_magic, 8}));
    file_.write_at(8, bytes_of(std::array{count_, counted_, tokens_.value(), mask_.value()}));
  }

  [[nodiscard]] PartFile& file() noexcept { return file_; }

 private:
  void count(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask) {
    tokens_.add(std::as_bytes(tokens));
    mask_.add(std::as_bytes(mask));
    count_ += mask.size();
    counted_ += static_cast<std::uint64_t>(std::ranges::count(mask, 1));
  }

  PartFile file_;
  RunningChecksum tokens_;
  RunningChecksum mask_;
  std::uint64_t count_{};
  std::uint64_t counted_{};
};

Bytes header_bytes(Format format) {
  return format == Format::llmc ? llmc_header_bytes : 0;
}

void name_part(std::string const& path) {
  auto const part = part_of(path);
  if (!is_there(part)) {
    if (!is_there(path)) {
      throw DataError{fmt::format("neither {} nor {} is there", path, part)};
    }
    return;
  }
  refuse_existing(path, "somebody wrote it meanwhile; move it away and give the command again");
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    throw IoError{"cannot rename", part, errno};
  }
}

}  // namespace

TokenType token_type_for(Format format, std::int64_t vocab) {
  require(vocab >= 1 && vocab <= largest_i32, "TokenWriter: no such vocabulary");
  if (vocab <= u16_tokens) {
    return TokenType::u16;
  }
  if (format == Format::nanogpt) {
    throw UsageError{
        fmt::format("nanogpt data holds u16 tokens, at most {} of them, but the tokenizer has {}; "
                    "use --format=megatron",
                    u16_tokens, vocab)};
  }
  return format == Format::megatron ? TokenType::i32 : TokenType::u32;
}

class TokenWriter::Implementation {
 public:
  Implementation(std::string const& prefix, Format format, std::int64_t vocab, bool has_mask,
                 std::optional<Written> const& begun)
      : format_{format},
        type_{token_type_for(format, vocab)},
        vocab_{vocab},
        data_{prefix + ".bin", begun_bytes(begun, header_bytes(format),
                                           begun ? begun->tokens * size_of(type_) : 0)} {
    auto const mask = mask_path_of(data_.path());
    refuse_existing(mask, "it is of other tokens; remove it or use another prefix");
    if (has_mask) {
      mask_.emplace(mask, begun);
    }
    if (format == Format::megatron) {
      index_.emplace(prefix + ".idx", type_, begun);
    }
    if (begun && begun->tokens > 0) {
      tokens_ = begun->tokens;
      documents_ = begun->documents;
      count_mask_again();
    } else {
      data_.append(std::vector<std::byte>(static_cast<std::size_t>(header_bytes(format))));
    }
  }

  void write(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask) {
    require(mask_ || mask.empty(), "TokenWriter: there is no mask to write");
    if (mask_) {
      mask_->add(tokens, mask);
    }
    for (auto const token : tokens) {
      require(token >= 0 && token < vocab_, "TokenWriter: token outside the vocabulary");
    }
    if (type_ == TokenType::u16) {
      std::array<std::uint16_t, 4096> narrow;
      for (auto rest = tokens; !rest.empty();) {
        auto const count = std::min(rest.size(), narrow.size());
        std::ranges::transform(rest.first(count), narrow.begin(), [](std::int32_t token) {
          return static_cast<std::uint16_t>(token);
        });
        data_.append(std::as_bytes(std::span{narrow}.first(count)));
        rest = rest.subspan(count);
      }
    } else {
      data_.append(std::as_bytes(tokens));
    }
    tokens_ += std::ssize(tokens);
    in_document_ += std::ssize(tokens);
    if (format_ == Format::llmc && tokens_ > largest_i32) {
      throw DataError{
          fmt::format("{}: llm.c's header counts at most {} tokens; use --format=megatron",
                      data_.path(), largest_i32)};
    }
    if (format_ == Format::megatron && in_document_ > largest_i32) {
      throw DataError{
          fmt::format("{}: document {} has more than {} tokens, the most that the index "
                      "can say; cut it",
                      data_.path(), documents_ + 1, largest_i32)};
    }
  }

  void end_document() {
    if (in_document_ == 0) {
      return;
    }
    if (index_) {
      index_->add(in_document_);
    }
    ++documents_;
    in_document_ = 0;
  }

  Written save() {
    require(in_document_ == 0, "TokenWriter: save within a document");
    sync();
    return {tokens_, documents_};
  }

  void finish() {
    end_document();
    if (tokens_ == 0) {
      throw DataError{fmt::format("{}: the text gave no token", data_.path())};
    }
    if (format_ == Format::llmc) {
      bool const narrow = type_ == TokenType::u16;
      std::array<std::int32_t, 3> const header{narrow ? llmc_magic_u16 : llmc_magic_u32,
                                               narrow ? llmc_version_u16 : llmc_version_u32,
                                               static_cast<std::int32_t>(tokens_)};
      data_.flush();
      data_.write_at(0, std::as_bytes(std::span{header}));
    }
    if (mask_) {
      mask_->finish();
    }
    if (index_) {
      index_->finish();
    }
    sync();
  }

  void keep() noexcept {
    data_.keep();
    if (mask_) {
      mask_->file().keep();
    }
    if (index_) {
      index_->file().keep();
    }
  }

  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int64_t documents() const noexcept { return documents_; }

 private:
  void sync() {
    data_.sync();
    if (mask_) {
      mask_->file().sync();
    }
    if (index_) {
      index_->file().sync();
    }
    aio::sync_name(data_.path());
  }

  /// Reads tokens that were written before, for the checksums of the mask.
  void count_mask_again() {
    constexpr std::int64_t piece = 65'536;
    std::vector<std::int32_t> tokens;
    std::vector<std::uint16_t> narrow;
    for (std::int64_t first = 0; mask_ && first < tokens_; first += piece) {
      tokens.resize(static_cast<std::size_t>(std::min(piece, tokens_ - first)));
      narrow.resize(tokens.size());
      auto const from = header_bytes(format_) + first * size_of(type_);
      if (type_ == TokenType::u16) {
        data_.read_at(from, std::as_writable_bytes(std::span{narrow}));
        std::ranges::copy(narrow, tokens.begin());
      } else {
        data_.read_at(from, std::as_writable_bytes(std::span{tokens}));
      }
      mask_->count_again(tokens);
    }
  }

  Format format_;
  TokenType type_;
  std::int64_t vocab_;
  PartFile data_;
  std::optional<IndexWriter> index_;
  std::optional<MaskWriter> mask_;
  std::int64_t tokens_{};
  std::int64_t documents_{};
  std::int64_t in_document_{};
};

TokenWriter::TokenWriter(std::string const& prefix, Format format, std::int64_t vocab,
                         bool has_mask, std::optional<Written> begun) {
  require(format == Format::megatron || format == Format::llmc || format == Format::nanogpt,
          "TokenWriter: no format to write");
  implementation_ = std::make_unique<Implementation>(prefix, format, vocab, has_mask, begun);
}
TokenWriter::~TokenWriter() = default;

void TokenWriter::write(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask) {
  implementation_->write(tokens, mask);
}
void TokenWriter::end_document() {
  implementation_->end_document();
}
Written TokenWriter::save() {
  return implementation_->save();
}
void TokenWriter::finish() {
  implementation_->finish();
}
void TokenWriter::keep() noexcept {
  implementation_->keep();
}
std::int64_t TokenWriter::tokens() const noexcept {
  return implementation_->tokens();
}
std::int64_t TokenWriter::documents() const noexcept {
  return implementation_->documents();
}

void name_token_files(std::string const& prefix, Format format, bool has_mask) {
  auto const data = prefix + ".bin";
  if (has_mask) {
    name_part(mask_path_of(data));
  }
  if (format == Format::megatron) {
    name_part(prefix + ".idx");
  }
  // A .bin alone would pass for another format, an .idx alone for nothing.
  name_part(data);
  aio::sync_name(data);
}

}  // namespace offstage::data
