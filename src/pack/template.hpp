#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"

namespace offstage::pack {

/// One piece of a template's line.
struct TemplatePart {
  enum class Kind {
    text,     ///< text as it is written
    content,  ///< {content}: the message's text
    trimmed,  ///< {trimmed}: the same without the blanks and line ends around it
    system,   ///< {system}: the line of the system message before; without one nothing
    token,    ///< {bos} or {eos}, where the tokenizer does not make it of a text
    learn,    ///< {learn}: the text after it counts in the loss
    ignore,   ///< {/learn}: the text after it does not count
  };
  Kind kind{};
  std::string text;
  std::int32_t token{};
};
using TemplateLine = std::vector<TemplatePart>;

/// The way in which the messages of a conversation become one text, and the parts of it that are
/// learned.
struct Template {
  struct Role {
    std::string name;
    TemplateLine line;
    bool is_learned{};    ///< its text has {learn}
    bool takes_system{};  ///< its text has {system}
  };
  TemplateLine begin, end;  ///< lines around every conversation
  /// In front of a conversation whose first message is not of the role `system`.
  TemplateLine no_system;
  std::vector<Role> roles;  ///< roles in the file's order
  std::optional<std::int32_t> eos;
  std::string asks_name;  ///< name of the role that asks; empty: the usual one

  /// Name of the role that no_system and {system} are about.
  static constexpr std::string_view system_role = "system";

  /// Whether a system message stands inside of a later one, as in LLaMA 2's [INST], and not where
  /// it is given.
  [[nodiscard]] bool puts_system_inside() const;
  /// The role of this name; null if there is none.
  [[nodiscard]] Role const* role(std::string_view name) const;
  /// The first role that is learned.
  [[nodiscard]] Role const& answers() const;
  /// The role whose words a model answers, user or prompt: that of `asks_name`, or else the one in
  /// front of answers(). Null if answers() is the first role.
  [[nodiscard]] Role const* asks() const;
  /// The roles' names: "system, user, assistant".
  [[nodiscard]] std::string role_names() const;
};

/// Reads a template file.
///
/// Format: lines `NAME = "TEXT"`, with TEXT as in JSON (\n, \t, \", \\, \u00e9). Empty lines and
///         those that begin with # are passed over. `bos` and `eos` name tokens of the tokenizer;
///         by default they are the token that it puts in front of a text and its own end token.
///         `begin` and `end` are around every conversation, `no-system` stands behind `begin` where
///         the first message is not of the role `system`, and `asks` names the role of a prompt
///         where it is not the one in front of the first learned one. Every other NAME is a role,
///         whose TEXT has {content} or {trimmed} once. Where a role has {system}, the line of a
///         system message stands there, in the next such message, and not by itself. {bos} and
///         {eos} stand for the tokens. The text between {learn} and {/learn}, or the line's end,
///         counts in the loss; one role at least has such a text. {{ stands for {.
/// Errors: DataError naming `key`, path, line and what would be right.
[[nodiscard]] Template read_template(std::string const& path, std::string const& key,
                                     data::Tokenizer const& tokenizer);

}  // namespace offstage::pack
