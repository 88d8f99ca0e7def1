#include "pack/conversation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/printable.hpp"

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

Message read_message(nlohmann::json const& object, std::size_t number, Template const& form,
                     std::string const& place) {
  if (!object.is_object() || !object.contains("role") || !object.contains("content")) {
    fail(place, fmt::format("message {} is no object with role and content", number));
  }
  auto const name = text_of(object["role"], fmt::format("role of message {}", number), place);
  auto const* const role = form.role(name);
  if (role == nullptr) {
    fail(place, fmt::format("message {} has role '{}', but the template has {}", number,
                            printable_name(name), form.role_names()));
  }
  return {role, text_of(object["content"], fmt::format("content of message {}", number), place)};
}

}  // namespace

std::vector<Message> read_messages(std::string_view line, std::string const& field,
                                   Template const& form, std::string const& place) {
  auto const object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) {
    fail(place, object.is_discarded()
                    ? "is no JSON"
                    : fmt::format("is {}, but an object is expected", object.type_name()));
  }
  std::vector<Message> messages;
  if (object.contains(field)) {
    if (!object[field].is_array()) {
      fail(place, fmt::format("field '{}' is {}, but an array of messages is expected",
                              printable_name(field), object[field].type_name()));
    }
    for (auto const& message : object[field]) {
      messages.push_back(read_message(message, messages.size() + 1, form, place));
    }
    return messages;
  }
  bool any = false;
  for (Template::Role const& role : form.roles) {
    if (auto const found = object.find(role.name); found != object.end()) {
      any = true;
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
                                          std::span<std::int32_t const> tokens) {
  std::vector<std::int32_t> before;
  encoder_->encode(std::string_view{text_.text}.substr(0, turn.place), before);
  auto const same = std::ranges::mismatch(before, tokens).in1 - before.begin();
  bool const is_inside = same != std::ssize(before);
  out_.straddling += is_inside ? 1 : 0;
  auto const place = static_cast<std::size_t>(same) + (is_inside && !turn.learns ? 1 : 0);
  return std::min(place, tokens.size());
}

void ConversationEncoder::end_text() {
  std::vector<std::int32_t> tokens;
  if (!text_.text.empty()) {
    encoder_->encode(text_.text, tokens);
  }
  std::vector<std::uint8_t> mask;
  bool learns = text_.learns_at_first;
  for (Text::Turn const& turn : text_.turns) {
    mask.resize(std::max(mask.size(), place_of(turn, tokens)), learns ? 1 : 0);
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
                              bool stops_at_learn) {
  for (TemplatePart const& part : line) {
    switch (part.kind) {
      case TemplatePart::Kind::text:
        text_.text += part.text;
        break;
      case TemplatePart::Kind::content:
        text_.text += content;
        break;
      case TemplatePart::Kind::token:
        add_token(part.token);
        break;
      case TemplatePart::Kind::learn:
        if (stops_at_learn) {
          return false;
        }
        turn(true);
        break;
      case TemplatePart::Kind::ignore:
        turn(false);
        break;
    }
  }
  turn(false);
  return true;
}

ConversationEncoder::Encoded ConversationEncoder::encode(std::span<Message const> messages) {
  add(form_.begin, {}, false);
  for (Message const& message : messages) {
    add(message.role->line, message.content, false);
  }
  add(form_.end, {}, false);
  end_text();
  return std::exchange(out_, {});
}

std::vector<std::int32_t> ConversationEncoder::prompt(std::span<Message const> messages) {
  add(form_.begin, {}, false);
  for (Message const& message : messages) {
    add(message.role->line, message.content, false);
  }
  add(form_.answers().line, {}, true);
  end_text();
  return std::exchange(out_, {}).tokens;
}

}  // namespace offstage::pack
