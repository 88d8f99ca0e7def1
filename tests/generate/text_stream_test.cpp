#include "generate/text_stream.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tokens/json_tokenizer.hpp"
#include "tokens/unicode.hpp"

namespace offstage::generate {
namespace {

using ::testing::ElementsAre;

/// As SentencePiece does: 0 is a control token without text, pieces have leading blanks, of which
/// the first of a text is dropped, and bytes (100 and up) become characters when they are whole.
class Pieces final : public data::Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocab() const override { return 356; }
  [[nodiscard]] std::unique_ptr<data::Encoder> encoder() const override { return nullptr; }
  [[nodiscard]] std::string decode(std::span<std::int32_t const> tokens) const override {
    decoded += std::ssize(tokens);
    static std::vector<std::string> const pieces{"", " one", " two", "s"};
    std::string text;
    std::string bytes;
    auto const end_bytes = [&] {
      bool const whole = bytes == "\u00E9";
      for (std::size_t i = 0; !whole && i < bytes.size(); ++i) {
        text += "\uFFFD";
      }
      text += whole ? bytes : "";
      bytes.clear();
    };
    for (std::int32_t const token : tokens) {
      if (token >= 100) {
        bytes += static_cast<char>(token - 100);
        continue;
      }
      end_bytes();
      std::string const& piece = pieces[static_cast<std::size_t>(token)];
      text += text.empty() && piece.starts_with(' ') ? piece.substr(1) : piece;
    }
    end_bytes();
    return text;
  }
  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override { return {}; }
  [[nodiscard]] std::optional<std::int32_t> token(std::string_view /*text*/) const override {
    return {};
  }
  [[nodiscard]] std::string name_of(std::int32_t /*token*/) const override { return {}; }

  mutable std::int64_t decoded = 0;  ///< tokens of all calls
};

std::vector<std::string> stream(data::Tokenizer const& tokenizer,
                                std::vector<std::int32_t> const& tokens) {
  TextStream text{tokenizer};
  std::vector<std::string> pieces;
  for (std::int32_t const token : tokens) {
    pieces.push_back(text.add(token));
  }
  pieces.push_back(text.finish());
  return pieces;
}

std::string joined(std::vector<std::string> const& pieces) {
  return fmt::format("{}", fmt::join(pieces, ""));
}

std::vector<std::string> stream_bytes(std::string const& text) {
  auto const tokenizer = data::open_tokenizer("bytes", "--tokenizer");
  return stream(*tokenizer, tokenizer->encode(text));
}

TEST(TextStream, GivesPlainTextAtOnce) {
  EXPECT_THAT(stream_bytes("a b\n"), ElementsAre("a", " ", "b", "\n", ""));
}

TEST(TextStream, HoldsACharacterBackUntilItIsWhole) {
  EXPECT_THAT(stream_bytes("\u00E9x"), ElementsAre("", "\u00E9", "x", ""));
  EXPECT_THAT(stream_bytes("\u20AC"), ElementsAre("", "", "\u20AC", ""));
  EXPECT_THAT(stream_bytes("\U0001F600!"), ElementsAre("", "", "", "\U0001F600", "!", ""));
}

TEST(TextStream, GivesBytesThatAreNoCharacterAsTheyAre) {
  EXPECT_THAT(stream_bytes("\xE2z"), ElementsAre("", "\xE2z", ""));
  EXPECT_THAT(stream_bytes("\x80\xFF"), ElementsAre("\x80", "\xFF", ""));
  EXPECT_THAT(stream_bytes("\xF0\x9F"), ElementsAre("", "", "\xF0\x9F"));
}

TEST(TextStream, LosesNoByteWhateverComes) {
  std::string all;
  for (int i = 0; i < 4096; ++i) {
    all += static_cast<char>(i * 167 + i / 16 * 31 + i / 256);
  }
  EXPECT_EQ(joined(stream_bytes(all)), all);
}

TEST(TextStream, KeepsTheBlanksOfPiecesAndSkipsControlTokens) {
  EXPECT_THAT(stream(Pieces{}, {1, 2, 3, 0, 0, 2, 1}),
              ElementsAre("one", " two", "s", "", "", " two", " one", ""));
}

TEST(TextStream, WaitsForTheBytesOfACharacter) {
  EXPECT_THAT(stream(Pieces{}, {1, 100 + 0xC3, 100 + 0xA9, 3}),
              ElementsAre("one", "", "\u00E9", "s", ""));
}

TEST(TextStream, DoesNotWaitForEver) {
  EXPECT_THAT(stream(Pieces{}, {100 + 0x80, 100 + 0x80, 100 + 0x80, 100 + 0x80, 3}),
              ElementsAre("", "", "", "\uFFFD", "\uFFFD\uFFFD\uFFFDs", ""));
}

TEST(TextStream, WaitsForACharacterBehindTokensWithoutText) {
  EXPECT_THAT(stream(Pieces{}, {0, 0, 0, 0, 100 + 0xC3, 100 + 0xA9}),
              ElementsAre("", "", "", "", "", "\u00E9", ""));
}

TEST(TextStream, LeavesACharacterThatALaterByteSpoils) {
  EXPECT_THAT(stream(Pieces{}, {1, 100 + 0xC3, 100 + 0xA9, 100 + 0xFF, 3}),
              ElementsAre("one", "", "\u00E9", "", "\uFFFDs", ""));
}

std::unique_ptr<data::Tokenizer> tokenizer_like(std::string const& name) {
  return tokens::open_json_tokenizer(OFFSTAGE_TOKENIZERS "/" + name + ".json", "--tokenizer");
}

std::int32_t byte_token(data::Tokenizer const& tokenizer, unsigned byte) {
  return tokenizer.token(fmt::format("<0x{:02X}>", byte)).value();
}

TEST(TextStream, GivesACharacterOfByteTokensAtTheBeginning) {
  auto const tokenizer = tokenizer_like("llama2");
  std::string const text = "\U0001F600 hello";
  EXPECT_EQ(joined(stream(*tokenizer, tokenizer->encode(text))), text);
}

TEST(TextStream, GoesOnBehindCharactersOfByteTokensThatAreSpoiledLater) {
  auto const tokenizer = tokenizer_like("llama2");
  std::vector<std::int32_t> tokens;
  for (unsigned const byte : {0xF0U, 0x9FU, 0x98U, 0x80U, 0xC3U, 0xA9U, 0xFFU}) {
    tokens.push_back(byte_token(*tokenizer, byte));
  }
  EXPECT_THAT(stream(*tokenizer, tokens),
              ElementsAre("", "", "", "\U0001F600", "", "\u00E9", "", "\uFFFD"));
}

/// The text without U+FFFD.
std::string without_marks(std::string text) {
  for (std::size_t at = 0; (at = text.find("\uFFFD", at)) != std::string::npos;) {
    text.erase(at, 3);
  }
  return text;
}

/// True if one text becomes the other when characters are left out.
bool holds_in_order(std::string const& text, std::string const& part) {
  std::size_t at = 0;
  return std::ranges::all_of(part, [&](char byte) {
    at = std::min(text.find(byte, at), text.size()) + 1;
    return at <= text.size();
  });
}

/// Tokens of which so many in ten are bytes, if the tokenizer has such tokens.
std::vector<std::int32_t> random_tokens(data::Tokenizer const& tokenizer, int of_bytes,
                                        std::mt19937& random) {
  std::vector<unsigned> const bytes{0x20, 0x41, 0x80, 0x98, 0x9F, 0xA9, 0xC3, 0xE2, 0xF0, 0xFF};
  std::vector<std::int32_t> tokens(60);
  for (std::int32_t& token : tokens) {
    bool const byte = static_cast<int>(random() % 10) < of_bytes;
    token = byte ? byte_token(tokenizer, bytes[random() % bytes.size()])
                 : static_cast<std::int32_t>(random() % static_cast<unsigned>(tokenizer.vocab()));
  }
  return tokens;
}

TEST(TextStream, GivesValidTextOfAnyTokensAndLosesNoCharacter) {
  auto const tokenizer = tokenizer_like("llama2");
  std::mt19937 random{7};
  for (int i = 0; i < 2000; ++i) {
    auto const tokens = random_tokens(*tokenizer, i % 11, random);
    auto const pieces = stream(*tokenizer, tokens);
    EXPECT_TRUE(std::ranges::all_of(pieces, tokens::is_valid)) << joined(pieces);
    EXPECT_TRUE(
        holds_in_order(without_marks(joined(pieces)), without_marks(tokenizer->decode(tokens))))
        << joined(pieces) << "\n"
        << tokenizer->decode(tokens);
  }
}

TEST(TextStream, GivesWhatTheTokenizerMakesOfAllTokensTogether) {
  for (char const* const name : {"gpt2", "llama3", "qwen", "words"}) {
    auto const tokenizer = tokenizer_like(name);
    std::mt19937 random{7};
    for (int i = 0; i < 500; ++i) {
      auto const tokens = random_tokens(*tokenizer, 0, random);
      EXPECT_EQ(joined(stream(*tokenizer, tokens)), tokenizer->decode(tokens)) << name;
    }
  }
}

TEST(TextStream, PassesOverWhatIsNotWanted) {
  Pieces const tokenizer;
  TextStream text{tokenizer};
  text.pass_over(1);
  EXPECT_EQ(text.add(2), " two");
}

TEST(TextStream, PassesOverALongPromptInTimeThatGrowsWithIt) {
  Pieces const tokenizer;
  TextStream text{tokenizer};
  for (int i = 0; i < 1000; ++i) {
    text.pass_over(1);
  }
  EXPECT_LE(tokenizer.decoded, 10 * 1000);
  EXPECT_EQ(text.add(2), " two");
}

TEST(TextStream, GivesBehindAPromptWhatItGivesBehindTextOfItsOwn) {
  for (char const* const name : {"gpt2", "llama3", "qwen", "words"}) {
    auto const tokenizer = tokenizer_like(name);
    std::mt19937 random{7};
    for (int i = 0; i < 100; ++i) {
      auto const tokens = random_tokens(*tokenizer, 0, random);
      TextStream passed{*tokenizer};
      TextStream added{*tokenizer};
      for (std::int32_t const token : std::span{tokens}.first(30)) {
        passed.pass_over(token);
        static_cast<void>(added.add(token));
      }
      static_cast<void>(added.finish());
      for (std::int32_t const token : std::span{tokens}.subspan(30)) {
        EXPECT_EQ(passed.add(token), added.add(token)) << name;
      }
      EXPECT_EQ(passed.finish(), added.finish()) << name;
    }
  }
}

}  // namespace
}  // namespace offstage::generate
