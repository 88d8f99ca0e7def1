#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"
#include "pack/template.hpp"

namespace offstage::pack {

struct Message {
  Template::Role const* role{};
  std::string content;
  bool learns = true;  ///< false: nothing of it counts in the loss, whatever the template says
};

struct Conversation {
  std::vector<Message> messages;
  /// Names of fields that are not used, once for each time that one is there and not empty.
  std::vector<std::string> unused;
};

/// A conversation, which is a JSON object in `line`. Its messages are the objects of the array
/// `field`, with role and content, and maybe a weight of 0 (not learned) or 1. Beside tool_calls or
/// function_call a content may be null or missing; such a message is not learned. ShareGPT's from
/// and value are the same, its human is user and its gpt assistant; `conversations` stands for
/// `messages`. A text `system` beside them is the first message, where the template has that role
/// and they do not begin with one. TRL's prompt and completion may be arrays of messages, of which
/// those of the prompt are not learned. Else there is one message for each role of the template
/// that is a field of the object, in the template's order (prompt, completion), without null and
/// empty ones.
/// Errors: DataError that begins with `place`: no JSON, no object, none of these fields, a role
///         that the template does not have, a content that is no text, another weight, a system
///         message without a later one that has it inside, or two for one, where the template puts
///         it there.
[[nodiscard]] Conversation read_conversation(std::string_view line, std::string const& field,
                                             Template const& form, std::string const& place);

/// Turns conversations into tokens, one after another.
///
/// Tokens:  those of the whole text, {bos} and {eos} included where the tokenizer makes them of
///         their texts, else between two of them. So they are the same tokens that the tokenizer
///         makes of the text elsewhere. A token that lies on both sides of
///         {learn} or {/learn} counts in the loss, unless the text before ends with it anyway (one
///         that stands for several blanks). Such places are counted, because a prompt that ends
///         there has other tokens.
/// Time:    a text is encoded once more for each {learn} and {/learn} in it, from the last cut that
///          the encoder knows (data::Cut) up to that place. Where one lies inside a token, the
///          tokens from there on are decoded some times too.
/// Threads: one.
class ConversationEncoder {
 public:
  ConversationEncoder(Template const& form, data::Tokenizer const& tokenizer)
      : form_{form}, tokenizer_{tokenizer}, encoder_{tokenizer.encoder()} {}

  struct Encoded {
    std::vector<std::int32_t> tokens;
    std::vector<std::uint8_t> mask;  ///< 1: the token counts in the loss
    std::int64_t straddling{};       ///< places of {learn} and {/learn} inside of tokens
  };
  [[nodiscard]] Encoded encode(std::span<Message const> messages);
  /// The tokens that a model gets to answer `messages`: these messages, and the first learned role
  /// up to {learn}.
  [[nodiscard]] std::vector<std::int32_t> prompt(std::span<Message const> messages);

 private:
  /// A text without tokens of the template, and the places of {learn} and {/learn} in it.
  struct Text {
    std::string text;
    struct Turn {
      std::size_t place;
      bool learns;  ///< whether the text counts from there on
    };
    std::vector<Turn> turns;
    bool learns_at_first{};
  };

  /// The effect of {learn}: the text after it counts, or does not, or the line ends there.
  enum class AtLearn { counts, passes, stops };

  /// Adds the lines of messages.
  void add(std::span<Message const> messages);
  /// Adds what stands in front of these messages.
  void begin(std::span<Message const> messages);
  /// Adds a line of the template. Returns false if it ended at {learn}.
  bool add(TemplateLine const& line, std::string_view content, AtLearn at_learn = AtLearn::counts);
  void add_token(std::int32_t token);
  void end_text();
  void turn(bool learns);
  /// The place of a turn in the text's tokens. `cut` is one of the text, before the turn.
  [[nodiscard]] std::size_t place_of(Text::Turn const& turn, std::span<std::int32_t const> tokens,
                                     data::Cut const& cut);
  /// The place in `tokens` where the text of the tokens `before` ends, if their first `same` tokens
  /// are alike and the others are not: found by the text that tokens are decoded to. A token that
  /// has text of both sides is learned.
  [[nodiscard]] std::size_t place_by_text(bool learns, std::span<std::int32_t const> before,
                                          std::span<std::int32_t const> tokens,
                                          std::size_t same) const;

  Template const& form_;
  data::Tokenizer const& tokenizer_;
  std::unique_ptr<data::Encoder> encoder_;
  Encoded out_;
  Text text_;
  bool learns_ = false;
  Message const* system_ = nullptr;  ///< system message that is to stand inside of a later one
};

}  // namespace offstage::pack
