#include "tokens/unigram.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "tokens/trie.hpp"
#include "tokens/unicode.hpp"
#include "tokens/vocabulary.hpp"

namespace offstage::tokens {
namespace {

/// How much less than the worst token an unknown character scores.
constexpr double unknown_penalty = 10.0;

/// A score as the `tokenizers` package reads it: digits as a whole number, times or by a power of
/// ten, which may round otherwise than the nearest double. Sums of scores that are equal but for
/// rounding decide by it.
double read_score(double nearest) {
  std::array<char, 32> text{};
  auto const end = std::to_chars(text.data(), text.data() + text.size(), std::abs(nearest),
                                 std::chars_format::scientific)
                       .ptr;
  std::uint64_t digits = 0;
  int exponent = 0;
  auto const* const mark = std::find(text.data(), end, 'e');
  for (auto const* c = text.data(); c != mark; ++c) {
    if (*c != '.') {
      digits = 10 * digits + static_cast<std::uint64_t>(*c - '0');
    }
  }
  auto const* const sign = mark + 1;
  std::from_chars(*sign == '+' ? sign + 1 : sign, end, exponent);
  exponent -= static_cast<int>(std::max<std::ptrdiff_t>(0, mark - text.data() - 2));
  auto const value = static_cast<double>(digits);
  constexpr int largest = 308;
  if (exponent < -largest || exponent > largest) {
    return nearest;
  }
  auto const power = std::strtod(fmt::format("1e{}", std::abs(exponent)).c_str(), nullptr);
  return std::copysign(exponent >= 0 ? value * power : value / power, nearest);
}

class Unigram final : public Model {
 public:
  explicit Unigram(Fields& fields) {
    read_vocabulary(fields);
    byte_fallback_ = fields.flag("byte_fallback", false);
    if (fields.has("unk_id")) {
      unknown_ = static_cast<std::int32_t>(fields.whole("unk_id", 0, std::ssize(scores_) - 1));
    }
    bytes_ = byte_tokens(*this);
  }

  void encode(std::string_view piece, WordCache& /*cache*/,
              std::vector<std::int32_t>& tokens) const override {
    Ways ways;
    Unknown unknown;
    for (std::size_t at = 0; at < piece.size();) {
      if (at == ways.reach() && at > ways.begin) {
        finish(piece, ways, unknown, tokens);
      }
      offer_tokens(piece, at, ways);
      at += character_bytes(piece[at]);
    }
    finish(piece, ways, unknown, tokens);
    finish_unknown(piece, unknown, tokens);
  }

  [[nodiscard]] std::vector<std::optional<std::string>> const& texts() const override {
    return vocabulary_.texts();
  }
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const override {
    return vocabulary_.find(text);
  }

 private:
  static constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();
  /// The best way to a place: its last token, and where that begins.
  struct End {
    double score{};
    std::size_t begin = nowhere;
    std::int32_t token{};
  };
  /// The best ways from `begin` on, to each place up to reach().
  struct Ways {
    std::size_t begin{};
    std::vector<End> ends = std::vector<End>(1);
    [[nodiscard]] std::size_t reach() const { return begin + ends.size() - 1; }

    void offer(std::size_t from, std::size_t to, double score, std::int32_t token) {
      if (to > reach()) {
        ends.resize(to - begin + 1);
      }
      End& end = ends[to - begin];
      double const sum = score + ends[from - begin].score;
      if (end.begin == nowhere || sum > end.score) {
        end = {sum, from, token};
      }
    }
  };
  /// Unknown characters side by side, which are one token.
  struct Unknown {
    std::size_t begin{};
    std::size_t end{};
  };

  void read_vocabulary(Fields& fields) {
    auto const& all = fields.value("vocab");
    if (!all.is_array() || all.empty() || std::ssize(all) > largest_vocab) {
      fields.fail("vocab", "is no array of texts and scores");
    }
    lowest_ = std::numeric_limits<double>::infinity();
    for (nlohmann::json const& one : all) {
      auto const token = static_cast<std::int32_t>(scores_.size());
      if (!one.is_array() || one.size() != 2 || !one[0].is_string() || !one[1].is_number()) {
        auto const shown = one.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        fields.fail("vocab", fmt::format("number {} is {}, but a text and a score are expected",
                                         token, printable_name(shown)));
      }
      scores_.push_back(read_score(one[1].get<double>()));
      lowest_ = std::min(lowest_, scores_.back());
      vocabulary_.put(one[0].get<std::string>(), token);
    }
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      auto const& text = *vocabulary_.texts()[i];
      if (!text.empty()) {
        trie_.put(text, *vocabulary_.find(text));
      }
    }
  }

  void offer_tokens(std::string_view piece, std::size_t at, Ways& ways) const {
    std::size_t const size = character_bytes(piece[at]);
    bool single = false;
    trie_.prefixes(piece.substr(at), [&](std::size_t length, std::int32_t token) {
      ways.offer(at, at + length, scores_[static_cast<std::size_t>(token)], token);
      single = single || length == size;
    });
    if (!single) {
      ways.offer(at, at + size, lowest_ - unknown_penalty, require_unknown(piece.substr(at, size)));
    }
  }

  /// Takes the best way to its end, which no token of a later way crosses, and begins anew there.
  /// The score goes on, as sums of rounded numbers depend on it.
  void finish(std::string_view piece, Ways& ways, Unknown& unknown,
              std::vector<std::int32_t>& tokens) const {
    std::vector<std::pair<std::size_t, End>> parts;
    for (std::size_t end = ways.reach(); end > ways.begin; end = parts.back().second.begin) {
      parts.emplace_back(end, ways.ends[end - ways.begin]);
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      auto const& [end, way] = *part;
      if (way.token == unknown_) {
        unknown = {unknown.end > 0 ? unknown.begin : way.begin, end};
      } else {
        finish_unknown(piece, unknown, tokens);
        tokens.push_back(way.token);
      }
    }
    double const score = ways.ends.back().score;
    ways.begin = ways.reach();
    ways.ends.assign(1, {.score = score});
  }

  [[nodiscard]] std::int32_t require_unknown(std::string_view character) const {
    if (unknown_ < 0) {
      throw DataError{fmt::format(
          "the tokenizer has no token for '{}', and none for unknown characters (unk_id)",
          printable(character))};
    }
    return unknown_;
  }

  void finish_unknown(std::string_view piece, Unknown& unknown,
                      std::vector<std::int32_t>& tokens) const {
    auto const part = piece.substr(unknown.begin, unknown.end - unknown.begin);
    unknown = {};
    if (part.empty()) {
      return;
    }
    if (auto const token = vocabulary_.find(part)) {
      tokens.push_back(*token);
      return;
    }
    bool const spelled = byte_fallback_ && std::ranges::all_of(part, [&](char byte) {
                           return bytes_[static_cast<unsigned char>(byte)] >= 0;
                         });
    if (!spelled) {
      tokens.push_back(require_unknown(part));
      return;
    }
    for (char const byte : part) {
      tokens.push_back(bytes_[static_cast<unsigned char>(byte)]);
    }
  }

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  double lowest_{};
  Trie trie_;
  std::int32_t unknown_ = -1;
  bool byte_fallback_{};
  std::vector<std::int32_t> bytes_;
};

}  // namespace

std::unique_ptr<Model> make_unigram(Fields& fields) {
  return std::make_unique<Unigram>(fields);
}

}  // namespace offstage::tokens
