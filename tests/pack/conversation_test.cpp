#include "pack/conversation.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "named_bytes.hpp"
#include "temporary_directory.hpp"
#include "tokens/json_tokenizer.hpp"

namespace offstage::pack {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char const* chat =
    "begin = \"{bos}\"\nuser = \"[{content}]\"\nassistant = \"<{learn}{content}{eos}{/learn}>\"";

class Conversations : public testing::Test {
 protected:
  [[nodiscard]] Template form(std::string const& text, data::Tokenizer const& tokenizer) const {
    return read_template(folder.write("a.txt", text), "--template", tokenizer);
  }
  [[nodiscard]] std::string refusal(std::string const& line) const {
    auto const made = form(chat, bytes);
    try {
      static_cast<void>(read_conversation(line, "messages", made, "a.jsonl: line 7"));
    } catch (DataError const& error) {
      return error.what();
    }
    return "accepted";
  }

  TemporaryDirectory folder;
  NamedBytes bytes;
};

/// Tokens as text, those that count in upper case, 300 and 301 as ( and ).
std::string shown(ConversationEncoder::Encoded const& encoded) {
  std::string text;
  for (std::size_t i = 0; i < encoded.tokens.size(); ++i) {
    auto const token = encoded.tokens[i];
    char const c = token == 300 ? '(' : token == 301 ? ')' : static_cast<char>(token);
    text += encoded.mask[i] == 1 ? static_cast<char>(std::toupper(c)) : c;
    text += encoded.mask[i] == 1 && token > 255 ? "!" : "";
  }
  return text;
}

TEST_F(Conversations, LearnAnswersAndTheirEndsAlone) {
  auto const made = form(chat, bytes);
  auto const messages =
      read_conversation(
          R"({"id": 1, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content":
      "yes", "weight": 1}, {"role": "user", "content": "so"}, {"role": "assistant", "content": "no"}]})",
          "messages", made, "")
          .messages;
  ConversationEncoder encoder{made, bytes};
  EXPECT_EQ(shown(encoder.encode(messages)), "([hi]<YES)!>[so]<NO)!>");
  EXPECT_EQ(shown(encoder.encode(std::span{messages}.first(1))), "([hi]");
  auto const prompt = encoder.prompt(std::span{messages}.first(1));
  EXPECT_EQ(shown({prompt, std::vector<std::uint8_t>(prompt.size()), 0}), "([hi]<");
}

TEST_F(Conversations, HaveASystemMessageOfTheTemplateWhereTheyBeginWithNone) {
  auto const made =
      form(std::string{chat} + "\nno-system = \"%be kind%\"\nsystem = \"%{content}%\"", bytes);
  auto const all = [&](std::string const& messages) {
    return read_conversation("{\"messages\": [" + messages + "]}", "messages", made, "").messages;
  };
  std::string const user = R"({"role": "user", "content": "hi"})";
  std::string const system = R"({"role": "system", "content": "be brief"})";
  ConversationEncoder encoder{made, bytes};
  EXPECT_EQ(shown(encoder.encode(all(user))), "(%be kind%[hi]");
  EXPECT_EQ(shown(encoder.encode(all(system + "," + user))), "(%be brief%[hi]");
  EXPECT_EQ(shown(encoder.encode(all(user + "," + system))), "(%be kind%[hi]%be brief%");
  auto const prompt = encoder.prompt(all(user));
  EXPECT_EQ(shown({prompt, std::vector<std::uint8_t>(prompt.size()), 0}), "(%be kind%[hi]<");
}

TEST_F(Conversations, HaveTheirSystemMessageInsideOfTheNextOneWhereTheTemplateSaysSo) {
  auto const made = form(
      "system = \"%{content}%\"\nuser = \"[{system}{content}]\"\nassistant = "
      "\"<{learn}{content}>\"",
      bytes);
  auto const all = [&](std::string const& messages) {
    return read_conversation("{\"messages\": [" + messages + "]}", "messages", made, "line 1")
        .messages;
  };
  std::string const user = R"({"role": "user", "content": "hi"})";
  std::string const system = R"({"role": "system", "content": "be brief"})";
  std::string const answer = R"({"role": "assistant", "content": "yes"})";
  ConversationEncoder encoder{made, bytes};
  auto const encode = [&](std::string const& messages) {
    return shown(encoder.encode(all(messages)));
  };
  EXPECT_EQ(encode(user + "," + answer), "[hi]<YES>");
  EXPECT_EQ(encode(system + "," + user + "," + answer + "," + user), "[%be brief%hi]<YES>[hi]");
  EXPECT_EQ(encode(answer + "," + system + "," + answer + "," + user), "<YES><YES>[%be brief%hi]");
  auto const prompt = encoder.prompt(all(system + "," + user));
  EXPECT_EQ(shown({prompt, std::vector<std::uint8_t>(prompt.size()), 0}), "[%be brief%hi]<");
  for (std::string const& bad : {system, user + "," + system + "," + answer}) {
    try {
      static_cast<void>(all(bad));
      FAIL() << bad;
    } catch (DataError const& error) {
      EXPECT_THAT(error.what(),
                  testing::StartsWith("line 1: a system message is not followed by a message"));
    }
  }
  try {
    static_cast<void>(all(system + "," + system + "," + user));
    FAIL();
  } catch (DataError const& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("line 1: two system messages wait for one"));
  }
}

TEST_F(Conversations, AreTrimmedWhereTheTemplateSaysSo) {
  auto const made = form("user = \"[{trimmed}]\"\nassistant = \"<{learn}{trimmed}>\"", bytes);
  auto const messages =
      read_conversation(
          R"({"messages": [{"role": "user", "content": "\n a b\t "}, {"role": "assistant", "content": " yes "},
      {"role": "assistant", "content": " \r\n"}]})",
          "messages", made, "")
          .messages;
  EXPECT_EQ(shown(ConversationEncoder{made, bytes}.encode(messages)), "[a b]<YES><>");
}

TEST_F(Conversations, AreFieldsWithTheNamesOfRolesToo) {
  auto const made =
      form("prompt = \"{content}\"\nhint = \"#{content}\"\ncompletion = \"={learn}{content}{eos}\"",
           bytes);
  ConversationEncoder encoder{made, bytes};
  auto const encode = [&](std::string const& line) {
    return shown(encoder.encode(read_conversation(line, "messages", made, "").messages));
  };
  EXPECT_EQ(encode(R"({"completion": "two", "prompt": "one", "hint": "x", "other": 3})"),
            "one#x=TWO)!");
  EXPECT_EQ(encode(R"({"completion": "two", "prompt": "one", "hint": ""})"), "one=TWO)!");
  EXPECT_EQ(encode(R"({"completion": "two", "prompt": "one", "hint": null})"), "one=TWO)!");
}

TEST_F(Conversations, DoNotLearnMessagesOfWeightZero) {
  auto const made = form(chat, bytes);
  ConversationEncoder encoder{made, bytes};
  auto const encode = [&](std::string const& first, std::string const& second) {
    auto const line = fmt::format(
        R"({{"messages": [{{"role": "assistant", "content": "no"{}}}, {{"role": "user", "content": "so",
        "weight": 1}}, {{"role": "assistant", "content": "yes"{}}}]}})",
        first, second);
    return shown(encoder.encode(read_conversation(line, "messages", made, "").messages));
  };
  EXPECT_EQ(encode(R"(, "weight": 0)", ""), "(<no)>[so]<YES)!>");
  EXPECT_EQ(encode(R"(, "weight": 1.0)", R"(, "weight": 0.0)"), "(<NO)!>[so]<yes)>");
  EXPECT_EQ(encode(R"(, "weight": null)", R"(, "weight": 0)"), "(<NO)!>[so]<yes)>");
  for (std::string const weight : {"2", "0.5", "-1", "true", "\"0\""}) {
    EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "x"},
                        {"role": "assistant", "content": "x", "weight": )" +
                        weight + "}]}"),
                HasSubstr("a.jsonl: line 7: weight of message 2 is " + weight + ", but 0"));
  }
}

TEST_F(Conversations, AreRefusedHoweverDeepTheyAreNested) {
  constexpr std::size_t levels = 200'000;
  auto const deep = std::string(levels, '[') + std::string(levels, ']');
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": )" + deep + "}]}"),
              HasSubstr("part 1 of content of message 1 is no {"));
  EXPECT_THAT(
      refusal(R"({"messages": [{"role": "user", "content": "x", "weight": )" + deep + "}]}"),
      HasSubstr("weight of message 1 is array, but 0"));
  EXPECT_THAT(refusal(R"({"system": "x", "messages": [{"role": )" + deep + "}]}"),
              HasSubstr("message 1 is no object with role and content"));
}

TEST_F(Conversations, DoNotLearnCallsOfTools) {
  auto const made = form(std::string{chat} + "\ntool = \"#{content}\"", bytes);
  ConversationEncoder encoder{made, bytes};
  auto const encode = [&](std::string const& answer) {
    auto const line = fmt::format(
        R"({{"messages": [{{"role": "user", "content": "hi"}}, {{"role": "assistant", {}}},
        {{"role": "tool", "content": "x"}}, {{"role": "assistant", "content": "yes", "tool_calls": []}}]}})",
        answer);
    return shown(encoder.encode(read_conversation(line, "messages", made, "").messages));
  };
  std::string const calls = R"("tool_calls": [{"id": "1", "function": {"name": "f"}}])";
  for (std::string const& answer :
       {R"("content": null, )" + calls, R"("content": "", )" + calls, calls,
        std::string{R"("content": null, "function_call": {"name": "f"})"}}) {
    EXPECT_EQ(encode(answer), "([hi]<)>#x<YES)!>") << answer;
  }
  EXPECT_EQ(encode(R"("content": "so", )" + calls), "([hi]<so)>#x<YES)!>");
  for (std::string const none : {"null", "[]"}) {
    EXPECT_THAT(
        refusal(R"({"messages": [{"role": "user", "content": null, "tool_calls": )" + none + "}]}"),
        HasSubstr("content of message 1 is null, but a text is expected"));
  }
}

TEST_F(Conversations, HaveContentInPartsOfText) {
  auto const made = form(chat, bytes);
  ConversationEncoder encoder{made, bytes};
  auto const encode = [&](std::string const& content) {
    std::string const line =
        R"({"messages": [{"role": "user", "content": )" + content +
        R"(}, {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}]})";
    return shown(encoder.encode(read_conversation(line, "messages", made, "").messages));
  };
  EXPECT_EQ(encode(R"([{"type": "text", "text": "h"}, {"text": "i", "type": "text"}])"),
            encode(R"("hi")"));
  EXPECT_EQ(encode("[]"), encode(R"("")"));
  for (std::string const part :
       {R"({"type": "image_url", "image_url": {}})", R"("h")", R"({"type": "text"})"}) {
    EXPECT_THAT(
        refusal(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, )" +
                part + "]}]}"),
        HasSubstr("part 2 of content of message 1 is no {\"type\": \"text\""));
  }
  EXPECT_THAT(
      refusal(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]})"),
      HasSubstr("text of part 1 of content of message 1 is number, but a text is expected"));
}

TEST_F(Conversations, AreShareGptsToo) {
  auto const made = form(chat, bytes);
  ConversationEncoder encoder{made, bytes};
  auto const encode = [&](std::string const& line, std::string const& field) {
    return shown(encoder.encode(read_conversation(line, field, made, "").messages));
  };
  std::string const turns =
      R"([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"},
          {"from": "user", "value": "so"}, {"from": "assistant", "value": "no", "weight": 0}])";
  EXPECT_EQ(encode("{\"conversations\": " + turns + "}", "messages"), "([hi]<YES)!>[so]<no)>");
  EXPECT_EQ(encode("{\"turns\": " + turns + "}", "turns"), "([hi]<YES)!>[so]<no)>");
  EXPECT_EQ(encode(R"({"conversations": [{"role": "user", "content": "hi"}]})", "messages"),
            "([hi]");
  EXPECT_THAT(refusal(R"({"conversations": [{"from": "tool", "value": "x"}]})"),
              HasSubstr("message 1 has role 'tool', but the template has user, assistant"));
  EXPECT_THAT(refusal(R"({"conversations": "x"})"), HasSubstr("neither the field 'messages'"));
}

TEST_F(Conversations, HaveTheSystemMessageThatStandsBesideThem) {
  auto const made = form(std::string{chat} + "\nsystem = \"%{content}%\"", bytes);
  ConversationEncoder encoder{made, bytes};
  auto const encoded = [&](std::string const& line) {
    auto const conversation = read_conversation(line, "messages", made, "");
    std::string unused;
    for (std::string const& name : conversation.unused) {
      unused += " " + name;
    }
    return shown(encoder.encode(conversation.messages)) + unused;
  };
  EXPECT_EQ(encoded(R"({"system": "s", "conversations": [{"from": "human", "value": "v"}]})"),
            "(%s%[v]");
  EXPECT_EQ(encoded(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})"),
            "(%t% system");
  EXPECT_EQ(encoded(R"({"system": "", "messages": [{"role": "user", "content": "v"}]})"), "([v]");
  EXPECT_EQ(encoded(R"({"system": {"a": 1}, "messages": [{"role": "user", "content": "v"}]})"),
            "([v] system");
}

TEST_F(Conversations, OfPromptsAndCompletionsAsTrlHasThemLearnTheCompletion) {
  auto const made = form(chat, bytes);
  ConversationEncoder encoder{made, bytes};
  auto const line = [](std::string const& prompt, std::string const& completion) {
    return R"({"prompt": )" + prompt + R"(, "completion": )" + completion + R"(, "id": 1})";
  };
  std::string const user = R"({"role": "user", "content": "hi"})";
  std::string const answer = R"({"role": "assistant", "content": "yes"})";
  auto const conversation = read_conversation(
      line("[" + user + "," + answer + "," + user + "]", "[" + answer + "]"), "messages", made, "");
  EXPECT_EQ(shown(encoder.encode(conversation.messages)), "([hi]<yes)>[hi]<YES)!>");
  EXPECT_THAT(conversation.unused, ElementsAre("id"));
  EXPECT_THAT(refusal(line("[" + user + "]", "[1]")), HasSubstr("message 2 is no object"));
  EXPECT_THAT(refusal(line("\"hi\"", "[" + answer + "]")), HasSubstr("neither the field"));
}

TEST_F(Conversations, NameFieldsThatAreNotUsed) {
  auto const made = form(chat, bytes);
  auto const unused = [&](std::string const& line) {
    return read_conversation(line, "messages", made, "").unused;
  };
  EXPECT_THAT(
      unused(R"({"id": 3, "tools": [], "system": "", "user": null, "prompt": "p", "messages": [
                     {"role": "user", "content": "hi", "name": "me", "weight": 1},
                     {"role": "user", "content": "hi", "name": "me", "from": "x"}]})"),
      ElementsAre("name", "from", "name", "id", "prompt"));
  EXPECT_THAT(
      unused(R"({"system": "s", "conversations": [{"from": "human", "value": "v", "x": 0}]})"),
      ElementsAre("x", "system"));
  EXPECT_THAT(unused(R"({"user": "u", "assistant": "a", "history": [["x", "y"]], "score": NaN})"),
              ElementsAre("history"));
}

TEST_F(Conversations, MistakesAreNamed) {
  EXPECT_THAT(refusal("{"), HasSubstr("a.jsonl: line 7: is no JSON: mistake at its byte 2 "
                                      "(unexpected end of input)"));
  EXPECT_THAT(refusal("{\"a\": \"\xff\"}"),
              HasSubstr("mistake at its byte 8 (invalid string: ill-formed UTF-8 byte)"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is array, but an object is expected"));
  EXPECT_THAT(
      refusal(R"({"text": "x"})"),
      HasSubstr("neither the field 'messages' nor one of the template's roles (user, assistant)"));
  EXPECT_THAT(refusal(R"({"messages": "x"})"), HasSubstr("field 'messages' is string"));
  EXPECT_THAT(
      refusal(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]})"),
      HasSubstr("message 2 has role 'tool', but the template has user, assistant"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": null}]})"),
              HasSubstr("content of message 1 is null, but a text is expected"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user"}]})"),
              HasSubstr("no object with role and content"));
  EXPECT_THAT(refusal(R"({"user": 1})"), HasSubstr("field 'user' is number"));
}

TEST_F(Conversations, HaveTheTokensOfTheWholeText) {
  for (char const* const name : {"gpt2", "llama2", "unigram"}) {
    auto const tokenizer = tokens::open_json_tokenizer(
        std::string{OFFSTAGE_TOKENIZERS} + "/" + name + ".json", "--tokenizer");
    auto const made =
        form("prompt = \"The ship {content}:\"\ncompletion = \"{learn} {content}\"", *tokenizer);
    ConversationEncoder encoder{made, *tokenizer};
    auto const encoded = encoder.encode(
        read_conversation(R"({"prompt": "waits for", "completion": "nothing at all."})", "messages",
                          made, "")
            .messages);
    EXPECT_EQ(encoded.tokens, tokenizer->encode("The ship waits for: nothing at all.")) << name;
    auto const before = tokenizer->encode("The ship waits for:");
    EXPECT_EQ(std::ranges::find(encoded.mask, 1) - encoded.mask.begin(), std::ssize(before))
        << name;
    EXPECT_EQ(encoded.straddling, 0) << name;
  }
}

TEST_F(Conversations, CountPlacesInsideOfTokens) {
  auto const tokenizer =
      tokens::open_json_tokenizer(OFFSTAGE_TOKENIZERS "/gpt2.json", "--tokenizer");
  auto const whole = tokenizer->encode(" the");
  ASSERT_EQ(whole.size(), 1U);  // " " is not learned, but the token is
  auto const made = form("a = \" {learn}{content}{/learn}\"", *tokenizer);
  ConversationEncoder encoder{made, *tokenizer};
  auto const encoded =
      encoder.encode(read_conversation(R"({"a": "the"})", "messages", made, "").messages);
  EXPECT_EQ(encoded.tokens, whole);
  EXPECT_THAT(encoded.mask, ElementsAre(1));
  EXPECT_EQ(encoded.straddling, 1);
}

TEST_F(Conversations, LearnASpecialTokenThatTakesBlanksFromItsSides) {
  std::ifstream file{OFFSTAGE_TOKENIZERS "/gpt2.json"};
  auto json = nlohmann::json::parse(file);
  json["added_tokens"][0]["lstrip"] = true;
  ASSERT_EQ(json["added_tokens"][0]["content"], "<|endoftext|>");
  auto const tokenizer =
      tokens::open_json_tokenizer(folder.write("lstrip.json", json.dump()), "--tokenizer");
  auto const made =
      form("user = \"{content}\\n\"\nassistant = \"{learn}{content}<|endoftext|>{/learn}\\n\"",
           *tokenizer);
  ConversationEncoder encoder{made, *tokenizer};
  auto const encoded =
      encoder.encode(read_conversation(R"({"messages": [{"role": "user", "content": "!"},
                                         {"role": "assistant", "content": ""}]})",
                                       "messages", made, "")
                         .messages);
  EXPECT_EQ(encoded.tokens, tokenizer->encode("!\n<|endoftext|>\n"));
  EXPECT_THAT(encoded.mask, ElementsAre(0, 1, 0));
}

// A text is cut anywhere into what is not learned, what is, and what is not again. A token of ASCII
// stands for the bytes that it is decoded to.
TEST_F(Conversations, LearnTokensOnBothSidesOfAPlace) {
  auto const tokenizer =
      tokens::open_json_tokenizer(OFFSTAGE_TOKENIZERS "/gpt2.json", "--tokenizer");
  auto const made =
      form("a = \"{content}\"\nb = \"{learn}{content}{/learn}\"\nc = \"{content}\"", *tokenizer);
  ConversationEncoder encoder{made, *tokenizer};
  std::string const text = "Offstage storehouses misunderstand nothing, nevertheless: 1234567!!!";
  auto const whole = tokenizer->encode(text);
  int apart = 0;  // places whose prefix differs before the token that they lie in
  for (std::size_t from = 1; from + 1 < text.size(); ++from) {
    std::size_t const to = from + 1 + from % (text.size() - from - 1);
    auto const part = [&](std::size_t begin, std::size_t end) {
      return text.substr(begin, end - begin);
    };
    nlohmann::json const line{
        {"a", part(0, from)}, {"b", part(from, to)}, {"c", part(to, text.size())}};
    auto const encoded =
        encoder.encode(read_conversation(line.dump(), "messages", made, "").messages);
    EXPECT_EQ(encoded.tokens, whole);
    std::vector<std::uint8_t> expected;
    std::size_t place = 0;
    for (std::int32_t const token : whole) {
      std::size_t const end = place + tokenizer->decode({{token}}).size();
      expected.push_back(place < to && end > from ? 1 : 0);
      place = end;
    }
    EXPECT_EQ(encoded.mask, expected) << from << " to " << to;
    auto const before = tokenizer->encode(part(0, from));
    auto const same = std::ranges::mismatch(before, whole).in1 - before.begin();
    apart += same < std::ranges::find(expected, 1) - expected.begin() ? 1 : 0;
  }
  EXPECT_GT(apart, 0);
}

}  // namespace
}  // namespace offstage::pack
