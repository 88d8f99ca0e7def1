#include "tokens/frame.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.hpp"
#include "tokens/model.hpp"

namespace offstage::tokens {
namespace {

/// ["</s>", 2]
std::int32_t pair_field(Fields& fields, char const* name) {
  auto const& pair = fields.value(name);
  if (!pair.is_array() || pair.size() != 2) {
    fields.fail(name, "is no token with its number");
  }
  return token_number(fields, name, pair[1]);
}

/// {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}, ...}
std::map<std::string, std::vector<std::int32_t>> special_tokens(Fields& fields) {
  std::map<std::string, std::vector<std::int32_t>> all;
  if (!fields.has("special_tokens")) {
    return all;
  }
  for (auto const& [name, value] : fields.value("special_tokens").items()) {
    Fields one{value, fields.file(), fields.place("special_tokens")};
    one.ignore("id");
    one.ignore("tokens");
    for (auto const& number : one.value("ids")) {
      all[name].push_back(token_number(one, "ids", number));
    }
    one.finish();
  }
  return all;
}

data::Frame read_template(Fields& fields) {
  auto const special = special_tokens(fields);
  fields.ignore("pair");
  data::Frame frame;
  int texts = 0;
  for (Fields& part : fields.objects("single")) {
    if (part.has("Sequence")) {
      Fields text = part.object("Sequence");
      static_cast<void>(text.choice("id", {"A"}, ""));
      text.ignore("type_id");
      text.finish();
      ++texts;
    } else {
      Fields token = part.object("SpecialToken");
      auto const name = token.text("id");
      token.ignore("type_id");
      token.finish();
      if (!special.contains(name)) {
        token.fail("id", fmt::format("'{}' is not in special_tokens", printable_name(name)));
      }
      auto& side = texts == 0 ? frame.before : frame.behind;
      side.insert(side.end(), special.at(name).begin(), special.at(name).end());
    }
    part.finish();
  }
  if (texts != 1) {
    fields.fail("single", fmt::format("holds the text {} times, but once is expected", texts));
  }
  return frame;
}

}  // namespace

data::Frame read_frame(Fields fields) {
  static std::vector<std::string> const types{"ByteLevel", "TemplateProcessing", "BertProcessing",
                                              "RobertaProcessing", "Sequence"};
  std::string const& type = types[fields.choice("type", types, "")];
  data::Frame frame;
  if (type == "TemplateProcessing") {
    frame = read_template(fields);
  } else if (type == "Sequence") {
    for (Fields& one : fields.objects("processors")) {
      auto const inner = read_frame(std::move(one));
      frame.before.insert(frame.before.begin(), inner.before.begin(), inner.before.end());
      frame.behind.insert(frame.behind.end(), inner.behind.begin(), inner.behind.end());
    }
  } else {
    if (type != "ByteLevel") {
      frame = {.before = {pair_field(fields, "cls")}, .behind = {pair_field(fields, "sep")}};
    }
    // These are about places in the text.
    for (char const* const name : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      fields.ignore(name);
    }
  }
  fields.finish();
  return frame;
}

}  // namespace offstage::tokens
