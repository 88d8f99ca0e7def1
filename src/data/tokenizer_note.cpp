#include "data/tokenizer_note.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "data/loss_mask.hpp"
#include "data/part_file.hpp"
#include "platform/aio/file.hpp"

namespace offstage::data {
namespace {

constexpr std::string_view first_line = "offstage tokenizer 1";
constexpr std::string_view name_key = "name=", sample_key = "sample=", bytes_key = "bytes=";
// Later lines, which older notes lack.
constexpr std::string_view vocab_key = "vocab=", mask_key = "mask=";

// Never changed: notes hold what tokenizers make of it.
constexpr std::string_view sample_text =
    "The quick brown fox doesn't jump over 13 lazy dogs; it's 3.14159 or 2,718,281 (1e-9).\n"
    "Unbelievably, international collaborations re-established the neighbourhood's water supply.\n"
    "\tfor (int i = 0; i < 1024; ++i) { total += weights[i] * value->at(i); }  // sum\n"
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n\n\n"
    "{\"url\": \"https://example.org/a_b?c=d&e=%20f\", \"ok\": true}\r\n"
    "Größere Straßen führen über Zürich. L'été dernier, où êtes-vous allé ? ¿Qué mañana?\n"
    "Съешь же ещё этих мягких французских булок. Το γρήγορο άλογο. שלום עולם. مرحبا بالعالم.\n"
    "नमस्ते दुनिया। 你好，世界！今天天气很好。こんにちは、世界。カタカナ 안녕하세요 세계. สวัสดี\n"
    "     five blanks, e\u0301 and \u00e9, \u20ac 5, \u2211 x\u00b2 \u2264 \u221e, \u2014 "
    "\u201cquoted\u201d\u2026 "
    "\U0001F600\U0001F44D\U0001F3FD ZZZqqq xkcd 0xDEADBEEF aaaaaaaaaaaaaaaa";

/// The next line's value; nullopt if it is not of this key.
std::optional<std::string> value_of(std::istream& file, std::string_view key) {
  std::string line;
  return std::getline(file, line) && line.starts_with(key) ? std::optional{line.substr(key.size())}
                                                           : std::nullopt;
}

/// The number of the next line; nullopt if the line is not of this key, or has none.
template <class Number>
std::optional<Number> number_of(std::istream& file, std::string_view key, int base = 10) {
  auto const text = value_of(file, key);
  return text ? number_in<Number>(*text, base) : std::nullopt;
}

std::string prefix_of(std::string const& tokens_path) {
  constexpr std::size_t suffix = 4;
  bool const has_suffix = tokens_path.ends_with(".bin") || tokens_path.ends_with(".idx");
  return tokens_path.substr(0, tokens_path.size() - (has_suffix ? suffix : 0));
}

/// The size of PREFIX.bin. Errors: IoError.
Bytes size_of_tokens(std::string const& prefix) {
  auto const tokens = prefix + ".bin";
  std::error_code error;
  auto const bytes = std::filesystem::file_size(tokens, error);
  if (error) {
    throw IoError{"cannot look at", tokens, error.value()};
  }
  return static_cast<Bytes>(bytes);
}

/// The note in a file, of whatever tokens; nullopt if it is none.
/// Errors: IoError if it cannot be read.
std::optional<TokenizerNote> read_note(std::string const& path) {
  if (!is_file(path)) {
    return std::nullopt;  // reading a pipe would wait
  }
  std::ifstream file{path};
  if (int const reason = errno; !file.is_open()) {
    if (reason == EACCES) {
      return std::nullopt;
    }
    throw IoError{"cannot open", path, reason};
  }
  std::string first;
  bool const is_note = std::getline(file, first) && first == first_line;
  auto const name = value_of(file, name_key);
  auto const sample = number_of<std::uint64_t>(file, sample_key, 16);
  auto const bytes = number_of<Bytes>(file, bytes_key);
  auto const vocab = number_of<std::int64_t>(file, vocab_key);
  bool const is_masked = value_of(file, mask_key) == "yes";
  if (file.bad()) {
    throw IoError{"cannot read", path, errno};
  }
  if (!is_note || !name || !sample || !bytes) {
    return std::nullopt;
  }
  return TokenizerNote{*name, *sample, *bytes, vocab.value_or(0), is_masked};
}

}  // namespace

std::string note_path_of(std::string const& tokens_path) {
  return prefix_of(tokens_path) + ".tokenizer";
}

std::optional<std::uint64_t> sample_of(Tokenizer const& tokenizer) {
  try {
    auto const tokens = tokenizer.encode(sample_text);
    if (tokens.empty()) {
      return std::nullopt;
    }
    RunningChecksum checksum;
    checksum.add(std::as_bytes(std::span{tokens}));
    return checksum.value();
  } catch (DataError const&) {
    return std::nullopt;
  }
}

void refuse_other_than_note(std::string const& prefix) {
  auto const path = note_path_of(prefix);
  if (!read_note(path)) {
    refuse_existing(path, "it is no note of a tokenizer; move it away or use another prefix");
  }
}

void write_note(std::string const& prefix, std::optional<TokenizerNote> const& note) {
  refuse_other_than_note(prefix);
  auto const path = note_path_of(prefix);
  std::error_code error;
  if (!note) {
    std::filesystem::remove(path, error);
    if (error) {
      throw IoError{"cannot remove", path, error.value()};
    }
    return;
  }
  auto const bytes = size_of_tokens(prefix);
  std::string const context = "--to";
  OutputFile file{context, part_of(path), O_TRUNC};
  file.write(fmt::format("{}\n{}{}\n{}{:016x}\n{}{}\n{}{}\n{}{}\n", first_line, name_key,
                         printable_name(note->name), sample_key, note->sample, bytes_key, bytes,
                         vocab_key, note->vocab, mask_key, note->is_masked ? "yes" : "no"));
  file.sync();
  file.close();
  rename_file(context + ": cannot replace", file.path(), path);
  aio::sync_name(path);
}

std::optional<TokenizerNote> note_beside(std::string const& tokens_path) {
  auto const prefix = prefix_of(tokens_path);
  auto note = read_note(note_path_of(prefix));
  bool const is_of_tokens =
      note && is_there(prefix + ".bin") && size_of_tokens(prefix) == note->bytes;
  return is_of_tokens ? note : std::nullopt;
}

}  // namespace offstage::data
