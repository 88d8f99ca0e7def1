#include "generate/text_stream.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

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
  std::string joined;
  for (std::string const& piece : stream_bytes(all)) {
    joined += piece;
  }
  EXPECT_EQ(joined, all);
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
              ElementsAre("", "", "", "\uFFFD\uFFFD\uFFFD\uFFFD", "s", ""));
}

TEST(TextStream, PassesOverWhatIsNotWanted) {
  Pieces const tokenizer;
  TextStream text{tokenizer};
  text.pass_over(1);
  EXPECT_EQ(text.add(2), " two");
}

}  // namespace
}  // namespace offstage::generate
