#include "data/held_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.hpp"

namespace offstage::data {
namespace {

class Section final : public TokenFile {
 public:
  Section(std::unique_ptr<TokenFile> file, std::int64_t first, std::int64_t count,
          std::optional<std::int64_t> documents)
      : file_{std::move(file)}, first_{first}, count_{count}, documents_{documents} {}

  [[nodiscard]] std::string const& path() const override { return file_->path(); }
  [[nodiscard]] Format format() const override { return file_->format(); }
  [[nodiscard]] TokenType type() const override { return file_->type(); }
  [[nodiscard]] std::int64_t tokens() const override { return count_; }
  [[nodiscard]] std::optional<std::int64_t> document_count() const override { return documents_; }
  [[nodiscard]] std::string doubt() const override { return file_->doubt(); }

  [[nodiscard]] std::optional<std::vector<std::int64_t>> documents() const override {
    auto all = file_->documents();
    if (!all) {
      return std::nullopt;
    }
    std::erase_if(*all, [&](auto begin) { return begin < first_ || begin >= first_ + count_; });
    for (std::int64_t& begin : *all) {
      begin -= first_;
    }
    return all;
  }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    require(first >= 0 && first + std::ssize(out) <= count_, "Section: no such tokens");
    file_->read(first_ + first, out);
  }

 private:
  std::unique_ptr<TokenFile> file_;
  std::int64_t first_;
  std::int64_t count_;
  std::optional<std::int64_t> documents_;
};

}  // namespace

std::string HeldOut::text() const {
  return any() ? fmt::format("{}the last {:.6g} %", is_taken ? "" : "all but ", 100.0 * part)
               : std::string{};
}

std::optional<double> parse_held_out(std::string_view text) {
  double percent{};
  auto const* const end = text.data() + text.size();
  auto [rest, code] = std::from_chars(text.data(), end, percent);
  while (code == std::errc{} && rest != end && *rest == ' ') {
    ++rest;
  }
  if (code != std::errc{} || rest + 1 != end || *rest != '%') {
    return std::nullopt;
  }
  if (!(percent > 0.0 && percent < 100.0)) {
    throw UsageError{fmt::format(
        "'{}' leaves nothing to train or to validate on; write more than 0% and less than 100%, "
        "as in 1%",
        text)};
  }
  return percent / 100.0;
}

namespace {

std::int64_t wanted_begin(std::int64_t tokens, double part) {
  return static_cast<std::int64_t>(std::llround((1.0 - part) * static_cast<double>(tokens)));
}

/// The place of a token `wanted` in [first, end): the first one, or the last one; -1: there is
/// none.
std::int64_t place_of(TokenFile const& file, std::int32_t wanted, std::int64_t first,
                      std::int64_t end, bool is_last) {
  constexpr std::int64_t step = 64 * 1024;
  std::vector<std::int32_t> tokens;
  for (std::int64_t done = 0; done < end - first; done += step) {
    auto const count = std::min(step, end - first - done);
    auto const begin = is_last ? end - done - count : first + done;
    tokens.resize(static_cast<std::size_t>(count));
    file.read(begin, tokens);
    if (is_last) {
      if (auto const found = std::find(tokens.rbegin(), tokens.rend(), wanted);
          found != tokens.rend()) {
        return begin + count - 1 - (found - tokens.rbegin());
      }
    } else if (auto const found = std::ranges::find(tokens, wanted); found != tokens.end()) {
      return begin + (found - tokens.begin());
    }
  }
  return -1;
}

}  // namespace

std::int64_t begin_of_held_out(TokenFile const& file, double part, std::int32_t separator) {
  std::int64_t const tokens = file.tokens();
  std::int64_t const wanted = wanted_begin(tokens, part);
  // A document begins behind a separator.
  auto const behind =
      place_of(file, separator, std::max<std::int64_t>(0, wanted - 1), tokens, false);
  std::int64_t const next = behind < 0 ? tokens : behind + 1;
  std::int64_t const least = std::max<std::int64_t>(0, 2 * wanted - next - 1);  // one as near
  auto const before =
      place_of(file, separator, least, std::max<std::int64_t>(least, wanted - 1), true);
  return before < 0 ? next : before + 1;
}

std::int64_t begin_of_held_out(std::int64_t tokens, double part,
                               std::optional<std::vector<std::int64_t>> const& documents) {
  std::int64_t const wanted = wanted_begin(tokens, part);
  if (!documents || documents->empty()) {
    return wanted;
  }
  auto const after = std::upper_bound(documents->begin() + 1, documents->end(), wanted);
  std::int64_t const next = after == documents->end() ? tokens : *after;
  bool const is_first = after == documents->begin() + 1;
  return !is_first && wanted - *std::prev(after) <= next - wanted ? *std::prev(after) : next;
}

std::unique_ptr<TokenFile> section_of(std::unique_ptr<TokenFile> file, std::int64_t first,
                                      std::int64_t count,
                                      std::optional<std::vector<std::int64_t>> const& documents) {
  std::optional<std::int64_t> inside;
  if (documents) {
    inside = std::ranges::count_if(
        *documents, [&](auto begin) { return begin >= first && begin < first + count; });
  }
  return std::make_unique<Section>(std::move(file), first, count, inside);
}

}  // namespace offstage::data
