#include "pack/template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "data/input_file.hpp"

namespace offstage::pack {
namespace {

constexpr Bytes largest_template = MiB;

using Fail = std::function<void(std::string const&)>;  // throws

/// A line of a file between two passes; bos and eos may come after their uses.
struct Given {
  std::size_t number{};  ///< the line's number
  std::string name;
  std::string text;
};

/// A token, and the text of which the tokenizer makes it alone, which may be empty. Such a text
/// stands for the token, as it does elsewhere: what follows it is not the beginning of a text.
struct Special {
  std::int32_t token{};
  std::string text;
};

struct Tokens {
  std::optional<Special> bos, eos;
};

TemplatePart part_of(std::string_view name, Tokens const& tokens, Fail const& fail) {
  using Kind = TemplatePart::Kind;
  struct Known {
    std::string_view name;
    Kind kind;
  };
  static constexpr std::array known{
      Known{"content", Kind::content}, Known{"trimmed", Kind::trimmed},
      Known{"system", Kind::system},   Known{"learn", Kind::learn},
      Known{"/learn", Kind::ignore},   Known{"bos", Kind::token},
      Known{"eos", Kind::token}};
  auto const* const found = std::ranges::find(known, name, &Known::name);
  if (found == known.end()) {
    fail(fmt::format(
        "has {{{}}}, but {{content}}, {{trimmed}}, {{system}}, {{bos}}, {{eos}}, {{learn}} "
        "and {{/learn}} are known; {{{{ stands for a brace",
        printable_name(name)));
  }
  auto const& token = name == "bos" ? tokens.bos : tokens.eos;
  if (found->kind == Kind::token && !token) {
    fail(fmt::format("has {{{}}}, but the tokenizer names no such token; write {} = \"TOKEN\"",
                     name, name));
  }
  if (found->kind == Kind::token && !token->text.empty()) {
    return {.kind = Kind::text, .text = token->text};
  }
  return {.kind = found->kind, .text = {}, .token = token ? token->token : 0};
}

TemplateLine parse_line(std::string_view text, Tokens const& tokens, Fail const& fail) {
  TemplateLine line;
  std::string plain;
  auto const end_plain = [&] {
    if (!plain.empty()) {
      line.push_back({.kind = TemplatePart::Kind::text, .text = std::move(plain)});
      plain.clear();
    }
  };
  while (!text.empty()) {
    if (text.front() != '{' || text.starts_with("{{")) {
      plain += text.front();
      text.remove_prefix(text.front() == '{' ? 2 : 1);
      continue;
    }
    auto const close = text.find('}');
    if (close == std::string_view::npos) {
      fail("has a { without }; {{ stands for a brace");
    }
    end_plain();
    line.push_back(part_of(text.substr(1, close - 1), tokens, fail));
    text.remove_prefix(close + 1);
  }
  end_plain();
  return line;
}

std::vector<Given> lines_of(std::string_view text, data::InputFile const& file) {
  std::vector<Given> all;
  for (std::size_t number = 1; !text.empty(); ++number) {
    auto const line = trimmed(take_until('\n', text));
    if (line.empty() || line.front() == '#') {
      continue;
    }
    auto const equals = line.find('=');
    auto const name = trimmed(line.substr(0, equals));
    nlohmann::json value;
    if (equals != std::string_view::npos) {
      value = nlohmann::json::parse(line.substr(equals + 1), nullptr, false);
    }
    if (!value.is_string() || name.empty()) {
      file.fail(fmt::format("line {} is no NAME = \"TEXT\", with TEXT as in JSON", number));
    }
    if (std::ranges::find(all, name, &Given::name) != all.end()) {
      file.fail(fmt::format("line {} gives '{}' a second time", number, printable_name(name)));
    }
    all.push_back({number, std::string{name}, value.get<std::string>()});
  }
  return all;
}

std::optional<std::int32_t> given_token(std::vector<Given> const& lines, std::string_view name,
                                        std::optional<std::int32_t> own,
                                        data::Tokenizer const& tokenizer,
                                        data::InputFile const& file) {
  auto const line = std::ranges::find(lines, name, &Given::name);
  if (line == lines.end()) {
    return own;
  }
  auto const token = tokenizer.token(line->text);
  if (!token) {
    file.fail(fmt::format(
        "line {}: {} = \"{}\" is no token of the tokenizer; take the tokenizer of a model that has "
        "it, or another template",
        line->number, name, printable_name(line->text)));
  }
  return token;
}

std::optional<Special> special(std::optional<std::int32_t> token,
                               data::Tokenizer const& tokenizer) {
  if (!token) {
    return std::nullopt;
  }
  auto const name = tokenizer.name_of(*token);
  bool const is_found = !name.empty() && tokenizer.encode(name) == std::vector{*token};
  return Special{*token, is_found ? name : ""};
}

std::int64_t count(TemplateLine const& line, TemplatePart::Kind kind) {
  return std::ranges::count(line, kind, &TemplatePart::kind);
}

void add_line(Given const& given, Tokens const& tokens, Template& result, Fail const& fail) {
  auto line = parse_line(given.text, tokens, fail);
  TemplateLine* const constant = given.name == "begin"       ? &result.begin
                                 : given.name == "end"       ? &result.end
                                 : given.name == "no-system" ? &result.no_system
                                                             : nullptr;
  auto const contents =
      count(line, TemplatePart::Kind::content) + count(line, TemplatePart::Kind::trimmed);
  if (contents != (constant != nullptr ? 0 : 1)) {
    fail(fmt::format("has {{content}} or {{trimmed}} {} times, but {} is right", contents,
                     constant != nullptr ? "never" : "once"));
  }
  auto const systems = count(line, TemplatePart::Kind::system);
  bool const may_have_one = constant == nullptr && given.name != Template::system_role;
  if (systems > (may_have_one ? 1 : 0)) {
    fail(fmt::format("has {{system}} {} times, but {} is right", systems,
                     may_have_one ? "once" : "never"));
  }
  if (constant != nullptr) {
    *constant = std::move(line);
    return;
  }
  auto const learn = std::ranges::find(line, TemplatePart::Kind::learn, &TemplatePart::kind);
  if (std::ranges::count(learn, line.end(), TemplatePart::Kind::system, &TemplatePart::kind) > 0) {
    fail("has {system} behind {learn}, but a system message is not learned");
  }
  bool const is_learned = count(line, TemplatePart::Kind::learn) > 0;
  result.roles.push_back({given.name, std::move(line), is_learned, systems > 0});
}

/// Checks a template as a whole. Errors: those of `file`.
void check(Template const& form, data::InputFile const& file) {
  if (std::ranges::none_of(form.roles, &Template::Role::is_learned)) {
    file.fail("has no role with {learn}, so that nothing would count in the loss");
  }
  auto const* const system = form.role(Template::system_role);
  if (!form.no_system.empty() && system == nullptr) {
    file.fail(fmt::format("has no-system, but no role {}", Template::system_role));
  }
  if (form.puts_system_inside() && (system == nullptr || system->is_learned)) {
    file.fail(system == nullptr ? "has {system}, but no role system"
                                : "has {system}, and the role system has {learn}");
  }
  if (form.puts_system_inside() && !form.no_system.empty()) {
    file.fail("has {system} and no-system: a system message has one place");
  }
  if (!form.asks_name.empty() && form.role(form.asks_name) == nullptr) {
    file.fail(fmt::format("has asks = \"{}\", but the roles are {}", printable_name(form.asks_name),
                          form.role_names()));
  }
}

}  // namespace

bool Template::puts_system_inside() const {
  return std::ranges::any_of(roles, &Role::takes_system);
}

Template::Role const* Template::role(std::string_view name) const {
  auto const found = std::ranges::find(roles, name, &Role::name);
  return found == roles.end() ? nullptr : &*found;
}

Template::Role const& Template::answers() const {
  return *std::ranges::find_if(roles, &Role::is_learned);
}

Template::Role const* Template::asks() const {
  if (!asks_name.empty()) {
    return role(asks_name);
  }
  Role const* const first = &answers();
  return first == roles.data() ? nullptr : first - 1;
}

std::string Template::role_names() const {
  std::string names;
  for (Role const& one : roles) {
    names += (names.empty() ? "" : ", ") + one.name;
  }
  return names;
}

Template read_template(std::string const& path, std::string const& key,
                       data::Tokenizer const& tokenizer) {
  data::InputFile const file{path, key};
  if (file.size() > largest_template) {
    file.fail("is too large for a template");
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span{text}));
  auto const lines = lines_of(text, file);
  auto const frame = tokenizer.frame();
  auto const own_bos = frame.before.empty() ? std::nullopt : std::optional{frame.before.front()};
  auto const bos = given_token(lines, "bos", own_bos, tokenizer, file);
  Template result;
  result.eos = given_token(lines, "eos", tokenizer.end_of_document(), tokenizer, file);
  Tokens const tokens{special(bos, tokenizer), special(result.eos, tokenizer)};
  for (Given const& given : lines) {
    if (given.name == "asks") {
      result.asks_name = given.text;
    } else if (given.name != "bos" && given.name != "eos") {
      add_line(given, tokens, result, [&](std::string const& problem) {
        file.fail(
            fmt::format("line {}: '{}' {}", given.number, printable_name(given.name), problem));
      });
    }
  }
  check(result, file);
  return result;
}

}  // namespace offstage::pack
