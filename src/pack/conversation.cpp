#include "pack/conversation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ranges>
#include <utility>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/text.hpp"
#include "pack/json_line.hpp"

// A line may be nested deeper than the stack is: no part of it is copied or written, which
// nlohmann's library does by recursion.
namespace offstage::pack {
namespace {

[[noreturn]] void fail(std::string const& place, std::string const& problem) {
  throw DataError{fmt::format("{}: {}", place, problem)};
}

std::string text_of(nlohmann::json const& value, std::string const& name,
                    std::string const& place) {
  if (!value.is_string()) {
    fail(place, fmt::format("{} is {}, but a text is expected", name, value.type_name()));
  }
  return value.get<std::string>();
}

/// The content of a message: a text, or OpenAI's parts of type text, one after the other.
std::string content_of(nlohmann::json const& value, std::string const& name,
                       std::string const& place) {
  if (!value.is_array()) {
    return text_of(value, name, place);
  }
  std::string content;
  for (std::size_t i = 0; i < value.size(); ++i) {
    auto const& part = value[i];
    auto const kind = part.is_object() ? part.find("type") : part.end();
    auto const text = part.is_object() ? part.find("text") : part.end();
    if (kind == part.end() || *kind != "text" || text == part.end()) {
      fail(place, fmt::format("part {} of {} is no {{\"type\": \"text\", \"text\": ...}}, and a "
                              "model of text has no use for others",
                              i + 1, name));
    }
    content += text_of(*text, fmt::format("text of part {} of {}", i + 1, name), place);
  }
  return content;
}

/// Names of a message's fields.
struct MessageFields {
  char const* role;
  char const* content;
};

/// The role of a message; null if the template does not have it.
Template::Role const* role_of(std::string const& name, bool is_share_gpt, Template const& form) {
  auto const* const role = form.role(name);
  if (role == nullptr && is_share_gpt) {
    return name == "human" ? form.role("user") : name == "gpt" ? form.role("assistant") : nullptr;
  }
  return role;
}

/// True for an answer that calls tools, of which OpenAI's format has no text.
bool calls_tools(nlohmann::json const& message) {
  return std::ranges::any_of(std::array{"tool_calls", "function_call"}, [&](char const* name) {
    auto const calls = message.find(name);
    return calls != message.end() && !calls->empty();
  });
}

/// False for a message whose weight is 0.
bool has_weight(nlohmann::json const& message, std::size_t number, std::string const& place) {
  auto const weight = message.find("weight");
  if (weight == message.end() || weight->is_null()) {
    return true;
  }
  if (!weight->is_number() || (*weight != 0 && *weight != 1)) {
    std::string const shown =
        weight->is_structured() ? weight->type_name() : printable_name(weight->dump());
    fail(place, fmt::format("weight of message {} is {}, but 0 (not learned) or 1 is expected",
                            number, shown));
  }
  return *weight == 1;
}

/// Returns whether a field says nothing: null, "", [] or {}.
bool is_empty(nlohmann::json const& value) {
  return value.is_string() ? value.get_ref<std::string const&>().empty() : value.empty();
}

/// Adds the names of fields that is_used(name) refuses and that are not empty.
template <class IsUsed>
void add_unused(nlohmann::json const& object, IsUsed const& is_used,
                std::vector<std::string>& unused) {
  for (auto const& [name, value] : object.items()) {
    if (!is_used(name) && !is_empty(value)) {
      unused.push_back(name);
    }
  }
}

Message read_message(nlohmann::json const& object, std::size_t number, Template const& form,
                     std::string const& place) {
  bool const is_share_gpt = object.is_object() && !object.contains("role");
  auto const names =
      is_share_gpt ? MessageFields{"from", "value"} : MessageFields{"role", "content"};
  bool const calls = object.is_object() && calls_tools(object);
  if (!object.is_object() || !object.contains(names.role) ||
      !(object.contains(names.content) || calls)) {
    fail(place,
         fmt::format("message {} is no object with role and content, or from and value", number));
  }
  auto const name =
      text_of(object[names.role], fmt::format("{} of message {}", names.role, number), place);
  auto const* const role = role_of(name, is_share_gpt, form);
  if (role == nullptr) {
    fail(place, fmt::format("message {} has role '{}', but the template has {}", number,
                            printable_name(name), form.role_names()));
  }
  auto const content = object.find(names.content);
  Message message{role, "", has_weight(object, number, place)};
  if (content != object.end() && !(content->is_null() && calls)) {
    message.content =
        content_of(*content, fmt::format("{} of message {}", names.content, number), place);
  }
  // To end the answer where a call followed is not what the model did there.
  message.learns = message.learns && !calls;
  return message;
}

void add_unused_of_message(nlohmann::json const& message, std::vector<std::string>& unused) {
  bool const is_share_gpt = !message.contains("role");
  add_unused(
      message,
      [&](std::string const& name) {
        return name == "weight" || name == (is_share_gpt ? "from" : "role") ||
               name == (is_share_gpt ? "value" : "content");
      },
      unused);
}

/// The name of the array of messages: `field`, or `conversations` in the place of `messages`.
std::string array_name(nlohmann::json const& object, std::string const& field) {
  constexpr char const* share_gpt = "conversations";
  bool const takes_it = field == "messages" && !object.contains(field) &&
                        object.contains(share_gpt) && object[share_gpt].is_array();
  return takes_it ? share_gpt : field;
}

/// The messages that are fields with the names of roles.
/// Errors: those of read_conversation.
std::vector<Message> messages_by_role(nlohmann::json const& object, std::string const& field,
                                      Template const& form, std::string const& place) {
  std::vector<Message> messages;
  bool any = false;
  for (Template::Role const& role : form.roles) {
    auto const found = object.find(role.name);
    any = any || found != object.end();
    if (found != object.end() && !found->is_null()) {
      auto content = text_of(*found, fmt::format("field '{}'", role.name), place);
      if (!content.empty()) {
        messages.push_back({&role, std::move(content)});
      }
    }
  }
  if (!any) {
    fail(place, fmt::format("has neither the field '{}' nor one of the template's roles ({})",
                            printable_name(field), form.role_names()));
  }
  return messages;
}

/// Errors: DataError for a system message that no later message takes.
void require_places(std::vector<Message> const& messages, Template const& form,
                    std::string const& place) {
  if (!form.puts_system_inside()) {
    return;
  }
  bool waits = false;
  for (Message const& message : messages) {
    bool const is_system = message.role->name == Template::system_role;
    if (is_system && waits) {
      fail(place,
           "two system messages wait for one message in which the template puts them "
           "({system})");
    }
    waits = is_system || (waits && !message.role->takes_system);
  }
  if (waits) {
    fail(place,
         "a system message is not followed by a message in which the template puts it ({system})");
  }
}

constexpr char const* prompt_field = "prompt";
constexpr char const* completion_field = "completion";

bool has_array(nlohmann::json const& object, char const* field) {
  return object.contains(field) && object[field].is_array();
}

/// Returns whether the system message stands beside the messages, as in ShareGPT's rows.
bool takes_system(nlohmann::json const& object, nlohmann::json const& messages,
                  Template const& form) {
  std::string const system{Template::system_role};
  auto const begins_with_it = [&] {
    auto const says = [&](char const* name) {
      auto const found = messages.front().find(name);
      return found != messages.front().end() && *found == system;
    };
    return !messages.empty() && messages.front().is_object() && (says("role") || says("from"));
  };
  return form.role(system) != nullptr && object.contains(system) && object[system].is_string() &&
         !is_empty(object[system]) && !begins_with_it();
}

/// Adds the messages of an array. `learn`: false: none of them is learned.
void add_messages(nlohmann::json const& array, bool learn, Template const& form,
                  std::string const& place, Conversation& result) {
  for (auto const& message : array) {
    result.messages.push_back(read_message(message, result.messages.size() + 1, form, place));
    result.messages.back().learns = result.messages.back().learns && learn;
    add_unused_of_message(message, result.unused);
  }
}

}  // namespace

Conversation read_conversation(std::string_view line, std::string const& field,
                               Template const& form, std::string const& place) {
  nlohmann::json object;
  std::string changed;
  try {
    object = nlohmann::json::parse(with_nulls(line, changed));
  } catch (nlohmann::json::parse_error const& error) {
    fail(place, describe_json_mistake(error.byte, error.what()));
  }
  if (!object.is_object()) {
    fail(place, fmt::format("is {}, but an object is expected", object.type_name()));
  }
  Conversation result;
  std::vector<std::string> used;
  auto const name = array_name(object, field);
  auto const array = object.find(name);
  if (array != object.end()) {
    if (!array->is_array()) {
      fail(place, fmt::format("field '{}' is {}, but an array of messages is expected",
                              printable_name(name), array->type_name()));
    }
    used.push_back(name);
    if (takes_system(object, *array, form)) {
      auto const* const role = form.role(Template::system_role);
      used.push_back(role->name);
      result.messages.push_back({role, object[role->name].get<std::string>()});
    }
    add_messages(*array, true, form, place, result);
  } else if (has_array(object, prompt_field) && has_array(object, completion_field)) {
    used = {prompt_field, completion_field};
    add_messages(object[prompt_field], false, form, place, result);
    add_messages(object[completion_field], true, form, place, result);
  } else {
    result.messages = messages_by_role(object, field, form, place);
    std::ranges::transform(form.roles, std::back_inserter(used), &Template::Role::name);
  }
  require_places(result.messages, form, place);
  add_unused(
      object, [&](std::string const& each) { return std::ranges::find(used, each) != used.end(); },
      result.unused);
  return result;
}

void ConversationEncoder::turn(bool learns) {
  if (learns == learns_) {
    return;
  }
  learns_ = learns;
  if (text_.text.empty()) {
    text_.learns_at_first = learns;
  } else {
    text_.turns.push_back({text_.text.size(), learns});
  }
}

std::size_t ConversationEncoder::place_of(Text::Turn const& turn,
                                          std::span<std::int32_t const> tokens,
                                          data::Cut const& cut) {
  std::vector<std::int32_t> before;
  encoder_->encode(std::string_view{text_.text}.substr(cut.begin, turn.place - cut.begin), before);
  auto const rest = tokens.subspan(cut.tokens);
  auto const same =
      static_cast<std::size_t>(std::ranges::mismatch(before, rest).in1 - before.begin());
  if (same == before.size()) {
    return cut.tokens + same;
  }
  ++out_.straddling;
  return cut.tokens + place_by_text(turn.learns, before, rest, same);
}

std::size_t ConversationEncoder::place_by_text(bool learns, std::span<std::int32_t const> before,
                                               std::span<std::int32_t const> tokens,
                                               std::size_t same) const {
  // Some tokens that both have stand in front, as decoders drop one blank at most at the begin.
  constexpr std::size_t some = 8;
  std::size_t const begin = same - std::min(same, some);
  std::string const text = tokenizer_.decode(before.subspan(begin));
  auto const decoded = [&](std::size_t count) {
    return tokenizer_.decode(tokens.subspan(begin, count - begin));
  };
  auto const reaches = [&](std::size_t count) { return decoded(count).starts_with(text); };
  // Special tokens have no text, and nothing is merged across them.
  std::size_t last = same;
  for (std::size_t step = 1; !reaches(last); step *= 2) {
    std::size_t const wanted = std::min(same + step, tokens.size());
    while (last < wanted && !tokenizer_.decode({{tokens[last], tokens[last]}}).empty()) {
      ++last;
    }
    if (last < wanted || wanted == tokens.size()) {
      break;
    }
  }
  auto const counts = std::views::iota(same, last + 1);
  auto const found =
      std::ranges::partition_point(counts, [&](std::size_t count) { return !reaches(count); });
  if (found != counts.end()) {
    return learns && decoded(*found) != text ? *found - 1 : *found;
  }
  // The token took blanks from its side: a special one, or one whose text differs.
  std::size_t const taker = text.starts_with(decoded(last)) ? last : same;
  return std::min(taker + (learns ? 0 : 1), tokens.size());
}

void ConversationEncoder::end_text() {
  std::vector<std::int32_t> tokens;
  std::vector<data::Cut> cuts{{}};
  if (!text_.text.empty()) {
    encoder_->encode_with_cuts(text_.text, tokens, cuts);
  }
  std::vector<std::uint8_t> mask;
  bool learns = text_.learns_at_first;
  auto cut = cuts.begin();  // the last one before the turn, so that no prefix is encoded whole
  for (Text::Turn const& turn : text_.turns) {
    while (std::next(cut) != cuts.end() && std::next(cut)->behind <= turn.place) {
      ++cut;
    }
    mask.resize(std::max(mask.size(), place_of(turn, tokens, *cut)), learns ? 1 : 0);
    learns = turn.learns;
  }
  mask.resize(tokens.size(), learns ? 1 : 0);
  out_.tokens.insert(out_.tokens.end(), tokens.begin(), tokens.end());
  out_.mask.insert(out_.mask.end(), mask.begin(), mask.end());
  text_ = {.text = {}, .turns = {}, .learns_at_first = learns_};
}

void ConversationEncoder::add_token(std::int32_t token) {
  end_text();
  out_.tokens.push_back(token);
  out_.mask.push_back(learns_ ? 1 : 0);
}

bool ConversationEncoder::add(TemplateLine const& line, std::string_view content,
                              AtLearn at_learn) {
  for (TemplatePart const& part : line) {
    switch (part.kind) {
      case TemplatePart::Kind::text:
        text_.text += part.text;
        break;
      case TemplatePart::Kind::content:
        text_.text += content;
        break;
      case TemplatePart::Kind::trimmed:
        text_.text += trimmed(content);
        break;
      case TemplatePart::Kind::system:
        if (system_ != nullptr) {
          auto const& system = *std::exchange(system_, nullptr);
          bool const learns = learns_;
          add(system.role->line, system.content);
          turn(learns);
        }
        break;
      case TemplatePart::Kind::token:
        add_token(part.token);
        break;
      case TemplatePart::Kind::learn:
        if (at_learn == AtLearn::stops) {
          return false;
        }
        turn(at_learn == AtLearn::counts);
        break;
      case TemplatePart::Kind::ignore:
        turn(false);
        break;
    }
  }
  turn(false);
  return true;
}

void ConversationEncoder::begin(std::span<Message const> messages) {
  add(form_.begin, {});
  if (messages.empty() || messages.front().role->name != Template::system_role) {
    add(form_.no_system, {});
  }
}

void ConversationEncoder::add(std::span<Message const> messages) {
  system_ = nullptr;
  for (Message const& message : messages) {
    if (form_.puts_system_inside() && message.role->name == Template::system_role) {
      system_ = &message;
    } else {
      add(message.role->line, message.content, message.learns ? AtLearn::counts : AtLearn::passes);
    }
  }
}

ConversationEncoder::Encoded ConversationEncoder::encode(std::span<Message const> messages) {
  begin(messages);
  add(messages);
  add(form_.end, {});
  end_text();
  return std::exchange(out_, {});
}

std::vector<std::int32_t> ConversationEncoder::prompt(std::span<Message const> messages) {
  begin(messages);
  add(messages);
  add(form_.answers().line, {}, AtLearn::stops);
  end_text();
  return std::exchange(out_, {}).tokens;
}

}  // namespace offstage::pack
