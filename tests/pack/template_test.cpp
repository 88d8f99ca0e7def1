#include "pack/template.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.hpp"
#include "named_bytes.hpp"
#include "pack/conversation.hpp"
#include "temporary_directory.hpp"
#include "tokens/json_tokenizer.hpp"

namespace offstage::pack {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Kind = TemplatePart::Kind;

class Templates : public testing::Test {
 protected:
  [[nodiscard]] Template read(std::string const& text) const {
    return read_template(folder.write("a.txt", text), "--template", tokenizer);
  }
  [[nodiscard]] std::string refusal(std::string const& text) const {
    try {
      static_cast<void>(read(text));
    } catch (DataError const& error) {
      return error.what();
    }
    return "accepted";
  }

  TemporaryDirectory folder;
  NamedBytes tokenizer;
};

TEST_F(Templates, SayWhichRoleAsks) {
  std::string const roles =
      "instruction = \"{content}\"\ninput = \"{content}\"\noutput = \"{learn}{content}\"\n";
  EXPECT_EQ(read(roles).asks()->name, "input");
  EXPECT_EQ(read(roles + "asks = \"instruction\"").asks()->name, "instruction");
  EXPECT_THAT(refusal(roles + "asks = \"user\""),
              HasSubstr("has asks = \"user\", but the roles are instruction, input, output"));
}

TEST_F(Templates, HaveRolesInTheirOrder) {
  auto const form = read(
      "# a comment\n\nuser = \"U: {content}\\n\"\nanswer=\"{{A}: {learn}{content}{eos}{/learn}\"\n"
      "begin = \"{bos}\"\n");
  EXPECT_EQ(form.role_names(), "user, answer");
  EXPECT_EQ(form.eos, 301);
  ASSERT_EQ(form.begin.size(), 1U);
  EXPECT_EQ(form.begin[0].token, 300);
  EXPECT_FALSE(form.role("user")->is_learned);
  auto const& line = form.role("answer")->line;
  ASSERT_EQ(line.size(), 5U);
  EXPECT_EQ(line[0].text, "{A}: ");
  EXPECT_EQ(line[1].kind, Kind::learn);
  EXPECT_EQ(line[2].kind, Kind::content);
  EXPECT_EQ(line[3].token, 301);
  EXPECT_EQ(line[4].kind, Kind::ignore);
  EXPECT_EQ(form.role("system"), nullptr);
}

TEST_F(Templates, NameTheTokensThatEndAndBegin) {
  auto const form = read("eos = \"<s>\"\na = \"{learn}{content}{eos}\"");
  EXPECT_EQ(form.eos, 300);
  EXPECT_EQ(form.roles[0].line.back().token, 300);
}

TEST_F(Templates, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(refusal("\nuser: hello"),
              AllOf(HasSubstr("--template="), HasSubstr("a.txt"), HasSubstr("line 2 is no NAME")));
  EXPECT_THAT(refusal("a = {content}"), HasSubstr("line 1 is no NAME"));
  EXPECT_THAT(refusal("a = \"{content}\"\na = \"{content}\""),
              HasSubstr("line 2 gives 'a' a second time"));
  EXPECT_THAT(refusal("a = \"{contents}\""), HasSubstr("line 1: 'a' has {contents}"));
  EXPECT_THAT(refusal("a = \"{content\""), HasSubstr("{ without }"));
  EXPECT_THAT(refusal("a = \"x\""),
              HasSubstr("has {content} or {trimmed} 0 times, but once is right"));
  EXPECT_THAT(refusal("a = \"{content}{trimmed}\""), HasSubstr("2 times, but once is right"));
  EXPECT_THAT(refusal("no-system = \"{content}\""), HasSubstr("but never is right"));
  EXPECT_THAT(refusal("no-system = \"x\"\na = \"{learn}{content}\""),
              HasSubstr("has no-system, but no role system"));
  EXPECT_THAT(refusal("a = \"{system}{content}{system}{learn}\""),
              HasSubstr("has {system} 2 times, but once is right"));
  EXPECT_THAT(refusal("system = \"{system}{content}\""), HasSubstr("but never is right"));
  EXPECT_THAT(refusal("begin = \"{system}\""), HasSubstr("but never is right"));
  EXPECT_THAT(refusal("a = \"{system}{learn}{content}\""),
              HasSubstr("has {system}, but no role system"));
  EXPECT_THAT(refusal("system = \"{learn}{content}\"\na = \"{system}{learn}{content}\""),
              HasSubstr("the role system has {learn}"));
  EXPECT_THAT(
      refusal("system = \"{content}\"\nno-system = \"x\"\na = \"{system}{learn}{content}\""),
      HasSubstr("a system message has one place"));
  EXPECT_THAT(refusal("system = \"{content}\"\na = \"{learn}{system}{content}\""),
              HasSubstr("has {system} behind {learn}"));
  EXPECT_THAT(refusal("begin = \"{content}\""), HasSubstr("but never is right"));
  EXPECT_THAT(refusal("a = \"{content}\""), HasSubstr("no role with {learn}"));
  EXPECT_THAT(refusal("eos = \"<end>\"\na = \"{learn}{content}\""),
              HasSubstr("\"<end>\" is no token of the tokenizer; take the tokenizer of a model"));
  auto const plain = data::open_tokenizer("bytes", "");
  auto const path = folder.write("b.txt", "a = \"{learn}{content}{eos}\"");
  EXPECT_THROW(static_cast<void>(read_template(path, "--template", *plain)), DataError);
}

TEST(TokensInATemplate, AreTheirTextsWhereTheTokenizerFindsThemThere) {
  TemporaryDirectory const folder;
  // A text begins with a mark, which does not stand behind a token.
  auto const tokenizer = tokens::open_json_tokenizer(
      folder.write("t.json", R"({"version": "1.0", "added_tokens": [{"id": 2, "content": "</s>",
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": false},
        "model": {"type": "BPE", "vocab": {"a": 0, "\u2581": 1}, "merges": []}})"),
      "--tokenizer");
  auto const form =
      read_template(folder.write("a.txt", "eos = \"</s>\"\na = \"{learn}{content}{eos}\""),
                    "--template", *tokenizer);
  EXPECT_EQ(form.eos, 2);
  EXPECT_EQ(form.roles[0].line.back().kind, Kind::text);
  std::vector<Message> const messages{{&form.roles[0], "a"}, {&form.roles[0], "a"}};
  auto const found = ConversationEncoder{form, *tokenizer}.encode(messages);
  EXPECT_THAT(found.tokens, testing::ElementsAre(1, 0, 2, 0, 2));
  EXPECT_THAT(found.mask, testing::Each(1));
}

TEST(ShippedTemplates, AreRead) {
  std::vector<std::string> names;
  for (auto const& entry : std::filesystem::directory_iterator{OFFSTAGE_TEMPLATES}) {
    names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  EXPECT_THAT(names, testing::ElementsAre("alpaca", "chatml", "completion", "llama2", "llama3",
                                          "mistral", "phi3", "phi4", "qwen2.5", "tulu", "zephyr"));
  NamedBytes const tokenizer;
  for (char const* const name : {"alpaca", "completion"}) {
    auto const path = std::string{OFFSTAGE_TEMPLATES} + "/" + name + ".txt";
    EXPECT_TRUE(read_template(path, "--template", tokenizer).roles.back().is_learned) << name;
  }
}

}  // namespace
}  // namespace offstage::pack
