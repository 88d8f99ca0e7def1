#include "data/token_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "data/llmc_header.hpp"
#include "data/loss_mask.hpp"
#include "data/megatron_index.hpp"

namespace offstage::data {
namespace {

constexpr std::int64_t u16_tokens = 65'536;
constexpr std::int64_t largest_i32 = std::numeric_limits<std::int32_t>::max();

TokenType type_for(Format format, std::int64_t vocab) {
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

void refuse_existing(std::string const& path, char const* what) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) {
    throw UsageError{fmt::format("{} is there already; {}", path, what)};
  }
}

/// A file under another name until it is whole. Appends through a buffer.
class PartFile {
 public:
  explicit PartFile(std::string path) : path_{std::move(path)}, part_{path_ + ".part"} {
    refuse_existing(path_, "it is never overwritten; remove it or use another prefix");
    file_ = open(part_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno == EEXIST) {
      refuse_existing(part_,
                      "a pack at work or one that was killed left it; remove it if the latter");
    }
    if (file_ < 0) {
      throw IoError{"cannot create", part_, errno};
    }
    buffer_.reserve(static_cast<std::size_t>(MiB));
  }
  ~PartFile() {
    close(file_);
    if (!named_) {
      unlink(part_.c_str());
    }
  }
  PartFile(PartFile const&) = delete;
  PartFile& operator=(PartFile const&) = delete;

  void append(std::span<std::byte const> bytes) {
    if (buffer_.size() + bytes.size() > buffer_.capacity()) {
      flush();
    }
    if (bytes.size() > buffer_.capacity()) {
      write_at(size_, bytes);
      size_ += static_cast<Bytes>(bytes.size());
      return;
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }

  void flush() {
    write_at(size_, buffer_);
    size_ += static_cast<Bytes>(buffer_.size());
    buffer_.clear();
  }

  void write_at(Bytes offset, std::span<std::byte const> bytes) {
    while (!bytes.empty()) {
      auto const count = pwrite(file_, bytes.data(), bytes.size(), offset);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        throw IoError{"cannot write", part_, errno};
      }
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      offset += count;
    }
  }

  /// Of what was flushed.
  void read_at(Bytes offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      auto const count = pread(file_, out.data(), out.size(), offset);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        throw IoError{"cannot read again", part_, count < 0 ? errno : EIO};
      }
      out = out.subspan(static_cast<std::size_t>(count));
      offset += count;
    }
  }

  void sync() {
    flush();
    if (fsync(file_) != 0) {
      throw IoError{"cannot write", part_, errno};
    }
  }

  void name() {
    refuse_existing(path_, "somebody wrote it meanwhile; remove it or use another prefix");
    if (std::rename(part_.c_str(), path_.c_str()) != 0) {
      throw IoError{"cannot rename", part_, errno};
    }
    named_ = true;
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }

 private:
  std::string path_;
  std::string part_;
  int file_ = -1;
  bool named_{};
  Bytes size_{};  ///< without the buffer
  std::vector<std::byte> buffer_;
};

template <class T>
std::span<std::byte const> bytes_of(T const& value) {
  return std::as_bytes(std::span{&value, 1});
}

void sync_directory(std::string const& file) {
  auto folder = std::filesystem::path{file}.parent_path();
  int const descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  bool const done = descriptor >= 0 && fsync(descriptor) == 0;
  int const error = errno;
  if (descriptor >= 0) {
    close(descriptor);
  }
  if (!done && error != EINVAL) {
    throw IoError{"cannot write", folder.empty() ? "." : folder.string(), error};
  }
}

/// The index, in the order in which it comes to be: lengths while documents come, the rest at the end.
class IndexWriter {
 public:
  IndexWriter(std::string const& path, TokenType type) : file_{path}, type_{type} {
    std::array<std::byte, megatron_header_bytes> const room{};
    file_.append(room);
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
  explicit MaskWriter(std::string const& path) : file_{path} {
    std::array<std::byte, mask_header_bytes> const room{};
    file_.append(room);
  }

  void add(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask) {
    require(mask.size() == tokens.size() &&
                std::ranges::all_of(mask, [](std::uint8_t byte) { return byte <= 1; }),
            "TokenWriter: 0 or 1 for each token");
    tokens_.add(std::as_bytes(tokens));
    mask_.add(std::as_bytes(mask));
    count_ += mask.size();
    counted_ += static_cast<std::uint64_t>(std::ranges::count(mask, 1));
    file_.append(std::as_bytes(mask));
  }

  void finish() {
    if (counted_ == 0) {
      throw DataError{fmt::format("{}: no token counts in the loss", file_.path())};
    }
    file_.flush();
    file_.write_at(0, std::as_bytes(std::span{mask_magic, 8}));
    file_.write_at(8, bytes_of(std::array{count_, counted_, tokens_.value(), mask_.value()}));
    file_.sync();
  }

  [[nodiscard]] PartFile& file() noexcept { return file_; }

 private:
  PartFile file_;
  RunningChecksum tokens_;
  RunningChecksum mask_;
  std::uint64_t count_{};
  std::uint64_t counted_{};
};

}  // namespace

class TokenWriter::Implementation {
 public:
  Implementation(std::string const& prefix, Format format, std::int64_t vocab, bool has_mask)
      : format_{format}, type_{type_for(format, vocab)}, vocab_{vocab}, data_{prefix + ".bin"} {
    auto const mask = mask_path_of(data_.path());
    refuse_existing(mask, "it is of other tokens; remove it or use another prefix");
    if (has_mask) {
      mask_.emplace(mask);
    }
    if (format == Format::megatron) {
      index_.emplace(prefix + ".idx", type_);
    }
    if (format == Format::llmc) {
      data_.append(std::vector<std::byte>(static_cast<std::size_t>(llmc_header_bytes)));
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

  void commit() {
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
    data_.sync();
    if (mask_) {
      mask_->finish();
      mask_->file().name();
    }
    if (index_) {
      index_->finish();
      index_->file().sync();
      // A .bin alone would pass for another format, an .idx alone for nothing.
      index_->file().name();
    }
    data_.name();
    sync_directory(data_.path());
  }

  [[nodiscard]] TokenType type() const noexcept { return type_; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int64_t documents() const noexcept { return documents_; }

 private:
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
                         bool has_mask) {
  require(format == Format::megatron || format == Format::llmc || format == Format::nanogpt,
          "TokenWriter: no format to write");
  implementation_ = std::make_unique<Implementation>(prefix, format, vocab, has_mask);
}
TokenWriter::~TokenWriter() = default;

void TokenWriter::write(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask) {
  implementation_->write(tokens, mask);
}
void TokenWriter::end_document() {
  implementation_->end_document();
}
void TokenWriter::commit() {
  implementation_->commit();
}
TokenType TokenWriter::type() const noexcept {
  return implementation_->type();
}
std::int64_t TokenWriter::tokens() const noexcept {
  return implementation_->tokens();
}
std::int64_t TokenWriter::documents() const noexcept {
  return implementation_->documents();
}

}  // namespace offstage::data
