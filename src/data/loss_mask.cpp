#include "data/loss_mask.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data/tokenizer_note.hpp"

namespace offstage::data {
namespace {

constexpr char const* make_again = "make tokens and mask again by offstage data pack --template";

}  // namespace

std::string mask_path_of(std::string const& tokens_path) {
  bool const has_suffix = tokens_path.ends_with(".bin");
  return tokens_path.substr(0, tokens_path.size() - (has_suffix ? 4 : 0)) + ".mask";
}

RunningChecksum::RunningChecksum() : state_{XXH3_createState()} {
  if (state_ == nullptr) {
    throw std::bad_alloc{};
  }
  XXH3_64bits_reset(state_.get());
}
void RunningChecksum::Free::operator()(XXH3_state_s* state) const noexcept {
  XXH3_freeState(state);
}
void RunningChecksum::add(std::span<std::byte const> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}
std::uint64_t RunningChecksum::value() const {
  return XXH3_64bits_digest(state_.get());
}

std::unique_ptr<LossMask> LossMask::beside(TokenFile const& tokens, std::string const& key) {
  auto const path = mask_path_of(tokens.path());
  if (!input_is_there(path, key)) {
    return nullptr;
  }
  return std::unique_ptr<LossMask>{new LossMask{path, key, tokens.tokens()}};
}

std::string LossMask::loss_of(TokenFile const& tokens) {
  auto const note = note_beside(tokens.path());
  return !note || !note->is_masked
             ? std::string{}
             : fmt::format(
                   "{}: {} is missing, and by the note {} the tokens were packed with it, as not "
                   "all of them count; bring it, or let all count: data.mask=off, --mask=off of "
                   "evaluate",
                   tokens.path(), mask_path_of(tokens.path()), note_path_of(tokens.path()));
}

LossMask::LossMask(std::string const& path, std::string const& key, std::int64_t tokens)
    : file_{path, key} {
  std::array<char, 8> magic{};
  if (file_.size() >= mask_header_bytes) {
    file_.read(0, std::as_writable_bytes(std::span{magic}));
  }
  if (!std::ranges::equal(magic, std::span{mask_magic, 8})) {
    file_.fail(fmt::format("is no mask: it does not begin with {}; {}, or move it away", mask_magic,
                           make_again));
  }
  std::array<std::uint64_t, 4> words{};
  file_.read(8, std::as_writable_bytes(std::span{words}));
  header_ = {words[0], words[1], words[2], words[3]};
  if (std::cmp_not_equal(header_.tokens, tokens)) {
    file_.fail(fmt::format("is the mask of {} tokens, but there are {}; {}", header_.tokens, tokens,
                           make_again));
  }
  if (file_.size() != mask_header_bytes + tokens) {
    file_.fail(fmt::format("has {} bytes, but {} tokens need {}; {}", file_.size(), tokens,
                           mask_header_bytes + tokens, make_again));
  }
  if (header_.counted == 0 || header_.counted > header_.tokens) {
    file_.fail(fmt::format("says that {} of {} tokens count; 1 at least must, and all at most",
                           header_.counted, tokens));
  }
  counted_ = static_cast<std::int64_t>(header_.counted);
}

void LossMask::read(std::int64_t first, std::span<std::uint8_t> out) const {
  file_.read(mask_header_bytes + first_ + first, std::as_writable_bytes(out));
  auto const odd = std::ranges::find_if(out, [](std::uint8_t byte) { return byte > 1; });
  if (odd != out.end()) {
    file_.fail(fmt::format("has the byte {} for token {}; 0 and 1 are right", *odd,
                           first_ + first + (odd - out.begin())));
  }
}

std::int64_t LossMask::count_from(std::int64_t place) const {
  constexpr std::int64_t step = 64 * 1024;
  auto const tokens = static_cast<std::int64_t>(header_.tokens);
  std::vector<std::uint8_t> mask;
  std::int64_t counted = 0;
  for (std::int64_t first = place; first < tokens; first += step) {
    mask.resize(static_cast<std::size_t>(std::min(step, tokens - first)));
    read(first, mask);
    counted += std::ranges::count(mask, 1);
  }
  return counted;
}

void LossMask::keep_before(std::int64_t place) {
  counted_ -= count_from(place);
}

void LossMask::keep_from(std::int64_t place) {
  counted_ = count_from(place);
  first_ = place;
}

void LossMask::verify(TokenFile const& tokens) const {
  RunningChecksum of_tokens;
  RunningChecksum of_mask;
  std::uint64_t counted = 0;
  std::vector<std::uint8_t> mask;
  for_each_piece(tokens, [&](std::int64_t first, std::span<std::int32_t const> piece) {
    mask.resize(piece.size());
    read(first, mask);
    of_tokens.add(std::as_bytes(piece));
    of_mask.add(std::as_bytes(std::span{mask}));
    counted += static_cast<std::uint64_t>(std::ranges::count(mask, 1));
  });
  auto const compare = [&](std::uint64_t given, std::uint64_t found, std::string const& problem) {
    if (given != 0 && given != found) {
      file_.fail(fmt::format("{} (checksum {:016x}, but its header says {:016x}); {}", problem,
                             found, given, make_again));
    }
  };
  compare(header_.tokens_checksum, of_tokens.value(),
          fmt::format("belongs to other tokens than those of {}", tokens.path()));
  compare(header_.mask_checksum, of_mask.value(), "is damaged");
  if (counted != header_.counted) {
    file_.fail(fmt::format("says that {} tokens count, but {} do; {}", header_.counted, counted,
                           make_again));
  }
}

}  // namespace offstage::data
