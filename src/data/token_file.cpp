#include "data/token_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.hpp"
#include "data/input_file.hpp"
#include "data/llmc_header.hpp"
#include "data/lookalikes.hpp"
#include "data/megatron_index.hpp"

namespace offstage::data {
namespace {

constexpr std::int64_t byte_tokens = 256;
constexpr char const* make_u16 =
    "nanogpt data has 2 bytes per token: write it anew, in NumPy as "
    "array.astype('<u2').tofile(...)";
constexpr char const* or_u32 = "; data.format=u32 takes 4 bytes as a token";

/// What differs between formats once their headers are read.
struct Layout {
  Format format{};
  TokenType type{};
  Bytes begin{};  ///< of the tokens in the file
  std::int64_t tokens{};
  std::optional<std::int64_t> documents{};
};

/// Calls work(T{}) with the C++ type of the tokens.
template <class Work>
void with_type(TokenType type, Work const& work) {
  switch (type) {
    case TokenType::u8:
      return work(std::uint8_t{});
    case TokenType::i8:
      return work(std::int8_t{});
    case TokenType::u16:
      return work(std::uint16_t{});
    case TokenType::i16:
      return work(std::int16_t{});
    case TokenType::i32:
      return work(std::int32_t{});
    case TokenType::u32:
      return work(std::uint32_t{});
    case TokenType::i64:
      return work(std::int64_t{});
  }
}

/// Tokens of any type that lie one behind the other in a file.
class RawTokens : public TokenFile {
 public:
  RawTokens(std::unique_ptr<InputFile> file, Layout const& layout, OpenTokens const& what)
      : file_{std::move(file)},
        layout_{layout},
        vocab_{std::min<std::int64_t>(what.vocab, std::numeric_limits<std::int32_t>::max())},
        vocab_key_{what.vocab_key} {
    if (layout_.format == Format::text && vocab_ < byte_tokens) {
      for_each_piece(*this, [](auto...) {});  // read() finds the bytes that are no tokens
    }
  }

  [[nodiscard]] std::string const& path() const override { return file_->path(); }
  [[nodiscard]] Format format() const override { return layout_.format; }
  [[nodiscard]] TokenType type() const override { return layout_.type; }
  [[nodiscard]] std::int64_t tokens() const override { return layout_.tokens; }
  [[nodiscard]] std::optional<std::vector<std::int64_t>> documents() const override {
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::int64_t> document_count() const override {
    return layout_.documents;
  }
  [[nodiscard]] std::string doubt() const override {
    int const width = layout_.format == Format::nanogpt ? seeming_width(*file_) : 2;
    return width == 2 ? std::string{}
                      : fmt::format("{} u16 are 0, as if these were tokens of {} bytes each; {}{}",
                                    width == 4 ? "every second of its" : "three of four of its",
                                    width, make_u16, width == 4 ? or_u32 : "");
  }

  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    auto const count = static_cast<std::int64_t>(out.size());
    require(first >= 0 && count <= layout_.tokens && first <= layout_.tokens - count,
            "TokenFile: read beyond the end");
    with_type(layout_.type, [&](auto zero) { read_as<decltype(zero)>(first, out); });
  }

 private:
  template <class T>
  void read_as(std::int64_t first, std::span<std::int32_t> out) const {
    std::array<T, 4096> buffer;
    while (!out.empty()) {
      auto const piece = std::span{buffer}.first(std::min(out.size(), buffer.size()));
      file_->read(layout_.begin + first * static_cast<Bytes>(sizeof(T)),
                  std::as_writable_bytes(piece));
      for (std::size_t i = 0; i < piece.size(); ++i) {
        auto const token = static_cast<std::int64_t>(piece[i]);
        if (token < 0 || token >= vocab_) {
          refuse(token, first + static_cast<std::int64_t>(i));
        }
        out[i] = static_cast<std::int32_t>(token);
      }
      first += static_cast<std::int64_t>(piece.size());
      out = out.subspan(piece.size());
    }
  }

  [[noreturn]] void refuse(std::int64_t token, std::int64_t position) const {
    if (layout_.format == Format::text) {
      file_->fail(fmt::format("byte {} at offset {} is no token of {}={}; bytes need {}=256", token,
                              position, vocab_key_, vocab_, vocab_key_));
    }
    file_->fail(fmt::format(
        "token {} at position {} is no token of {}={}; is this {} data of type {} from this "
        "model's tokenizer, or has {} to be larger?",
        token, position, vocab_key_, vocab_, name_of(layout_.format), name_of(layout_.type),
        vocab_key_));
  }

  std::unique_ptr<InputFile> file_;
  Layout layout_;
  std::int64_t vocab_;
  std::string vocab_key_;
};

class MegatronTokens final : public RawTokens {
 public:
  MegatronTokens(std::unique_ptr<InputFile> file, InputFile const& index, Layout const& layout,
                 OpenTokens const& what)
      : RawTokens{std::move(file), layout, what},
        index_{index.path()},
        key_{what.key},
        size_{index.size()},
        modified_{index.modified()} {}

  [[nodiscard]] std::optional<std::vector<std::int64_t>> documents() const override {
    InputFile const index{index_, key_};
    std::vector<std::int64_t> begins;
    if (index.size() != size_ || index.modified() != modified_) {
      fail_as_changed(index);
    }
    auto const found = read_megatron_index(index, tokens() * size_of(type()),
                                           [&](std::int64_t begin) { begins.push_back(begin); });
    if (found.type != type()) {
      fail_as_changed(index);
    }
    return begins;
  }

 private:
  [[noreturn]] static void fail_as_changed(InputFile const& index) {
    index.fail("was changed since it was opened; leave it as it is while a run reads it");
  }

  // The index is closed: of 10,000 files a process may have as many open, and no more.
  std::string index_;
  std::string key_;
  Bytes size_;
  std::int64_t modified_;
};

/// PATH without .bin or .idx.
std::string without_suffix(std::string const& path) {
  bool const has = path.ends_with(".bin") || path.ends_with(".idx");
  return has ? path.substr(0, path.size() - 4) : path;
}

std::unique_ptr<TokenFile> open_megatron(OpenTokens const& what) {
  std::string const prefix = without_suffix(what.path);
  InputFile const index{prefix + ".idx", what.key};
  auto file = std::make_unique<InputFile>(prefix + ".bin", what.key);
  auto const found = read_megatron_index(index, file->size());
  Layout const layout{Format::megatron, found.type, 0, found.tokens, found.documents};
  return std::make_unique<MegatronTokens>(std::move(file), index, layout, what);
}

/// Tokens of one type without a header.
Layout raw_layout(InputFile const& file, Format format, TokenType type) {
  if (file.size() % size_of(type) != 0) {
    file.fail(fmt::format("{} bytes are no whole number of {} tokens; is it {} data?", file.size(),
                          name_of(type), name_of(format)));
  }
  return {format, type, 0, file.size() / size_of(type)};
}

/// Megatron is told by names: PATH.idx, or a PATH.bin beside one, named with or without .bin.
bool is_megatron(std::string const& path, std::string const& key) {
  if (path.ends_with(".idx")) {
    return true;
  }
  bool const named = path.ends_with(".bin") || !input_is_file(path, key);
  std::string const prefix = without_suffix(path);
  return named && input_is_file(prefix + ".idx", key) && input_is_file(prefix + ".bin", key);
}

/// Checks that a file without a header can be read as u16.
/// Errors: DataError if the vocabulary is larger, or the file seems to hold wider numbers.
void require_u16(InputFile const& file, OpenTokens const& what) {
  if (what.vocab_is_known && what.vocab > u16_tokens) {
    file.fail(fmt::format(
        "a .bin without a header has tokens of 2 bytes, 65536 different ones at most, but {}={}; "
        "name Megatron data (PREFIX.bin with PREFIX.idx beside it), which offstage data pack "
        "--format=megatron writes with 4 bytes per token, or llm.c data{} (data.format=nanogpt "
        "would take 2)",
        what.vocab_key, what.vocab, or_u32));
  }
  if (int const width = seeming_width(file); width != 2) {
    file.fail(fmt::format(
        "looks like int{} tokens, as {} of its u16 are 0; {}, or put the PREFIX.idx of Megatron "
        "data beside it{} (data.format=nanogpt would take 2)",
        8 * width, width == 4 ? "every second" : "three of four", make_u16,
        width == 4 ? or_u32 : ""));
  }
}

Format detect(InputFile const& file, OpenTokens const& what) {
  std::int32_t magic{};
  if (file.size() >= static_cast<Bytes>(sizeof magic)) {
    file.read(0, std::as_writable_bytes(std::span{&magic, 1}));
  }
  if (llmc_type(magic)) {
    return Format::llmc;
  }
  bool const as_text = !file.path().ends_with(".bin");
  if (auto const found = find_lookalike(file, as_text)) {
    file.fail(fmt::format(
        "looks like {}, whose bytes are no tokens; {} (data.format=text or nanogpt would take them "
        "as they are)",
        found->name, found->advice));
  }
  if (as_text) {
    return Format::text;
  }
  require_u16(file, what);
  return Format::nanogpt;
}

/// Advice where `path` is no file, but path.bin is one.
std::string advice_on_prefix(std::string const& path, OpenTokens const& what) {
  if (input_is_file(path + ".idx", what.key)) {
    return fmt::format(
        "{}.bin and {}.idx, which are Megatron data and no {}; let the format be auto or megatron",
        path, path, name_of(what.format));
  }
  return fmt::format(
      "{}.bin without the {}.idx of Megatron data; name {}.bin if it is nanoGPT's or llm.c's, else "
      "put its .idx beside it",
      path, path, path);
}

Layout layout_of(InputFile const& file, Format format) {
  switch (format) {
    case Format::llmc: {
      auto const header = read_llmc_header(file);
      return {format, header.type, llmc_header_bytes, header.tokens};
    }
    case Format::nanogpt:
      return raw_layout(file, format, TokenType::u16);
    case Format::u32:
      return raw_layout(file, format, TokenType::u32);
    default:
      return {Format::text, TokenType::u8, 0, file.size()};
  }
}

}  // namespace

char const* name_of(Format format) {
  return format_words[static_cast<std::size_t>(format)].first;
}

char const* name_of(TokenType type) {
  constexpr std::array names{"u8", "i8", "u16", "i16", "i32", "u32", "i64"};
  return names[static_cast<std::size_t>(type)];
}

std::int64_t size_of(TokenType type) {
  constexpr std::array sizes{1, 1, 2, 2, 4, 4, 8};
  return sizes[static_cast<std::size_t>(type)];
}

std::unique_ptr<TokenFile> open_tokens(OpenTokens const& what) {
  bool const automatic = what.format == Format::automatic;
  if (what.format == Format::megatron || (automatic && is_megatron(what.path, what.key))) {
    return open_megatron(what);
  }
  if (!input_is_there(what.path, what.key) && input_is_file(what.path + ".bin", what.key)) {
    auto const& path = what.path;
    throw DataError{fmt::format("{}{}: there is no such file, but {}",
                                what.key.empty() ? "" : what.key + "=", path,
                                advice_on_prefix(path, what))};
  }
  auto file = std::make_unique<InputFile>(what.path, what.key);
  auto const format = automatic ? detect(*file, what) : what.format;
  Layout const layout = layout_of(*file, format);
  return std::make_unique<RawTokens>(std::move(file), layout, what);
}

std::vector<std::int64_t> begins_behind(TokenFile const& file, std::int32_t separator,
                                        std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> begins;
  for_each_piece(file, begin, end, [&](std::int64_t first, std::span<std::int32_t const> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      auto const next = first + static_cast<std::int64_t>(i) + 1;
      if (tokens[i] == separator && next < file.tokens()) {
        begins.push_back(next);
      }
    }
  });
  return begins;
}

std::vector<std::int64_t> documents_by_separator(TokenFile const& file, std::int32_t separator) {
  auto begins = begins_behind(file, separator, 0, file.tokens());
  begins.insert(begins.begin(), 0);
  return begins;
}

}  // namespace offstage::data
