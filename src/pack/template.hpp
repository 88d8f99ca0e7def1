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
    text,     ///< as it stands
    content,  ///< {content}: what the message says
    token,    ///< {bos} or {eos}
    learn,    ///< {learn}: what follows counts in the loss
    ignore,   ///< {/learn}: what follows does not
  };
  Kind kind{};
  std::string text;
  std::int32_t token{};
};
using TemplateLine = std::vector<TemplatePart>;

/// How the messages of a conversation become one text, and what of it is learned.
struct Template {
  struct Role {
    std::string name;
    TemplateLine line;
    bool is_learned{};  ///< {learn} stands in it
  };
  TemplateLine begin, end;  ///< of every conversation
  std::vector<Role> roles;  ///< in the file's order
  std::optional<std::int32_t> eos;

  /// Null if there is none of this name.
  [[nodiscard]] Role const* role(std::string_view name) const;
  /// The first role that is learned.
  [[nodiscard]] Role const& answers() const;
  /// The role in front of that one, whose words a model answers: user, or prompt; null if it is the
  /// first.
  [[nodiscard]] Role const* asks() const;
  /// "system, user, assistant"
  [[nodiscard]] std::string role_names() const;
};

/// Reads a template file.
///
/// Format: lines `NAME = "TEXT"`, TEXT as in JSON (\n, \t, \", \\, \u00e9); empty lines and those
///         that begin with # are passed over. `bos` and `eos` name tokens of the tokenizer; without
///         them they are what it puts in front of a text and its own end token. `begin` and `end`
///         are around every conversation. Every other NAME is a role, whose TEXT holds {content}
///         once. {bos} and {eos} stand for the tokens; what stands between {learn} and {/learn}, or
///         the line's end, counts in the loss, in one role at least. {{ stands for {.
/// Errors: DataError naming `key`, path, line and what would be right.
[[nodiscard]] Template read_template(std::string const& path, std::string const& key,
                                     data::Tokenizer const& tokenizer);

}  // namespace offstage::pack
