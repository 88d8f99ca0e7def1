#include "tokens/json_tokenizer.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <tuple>

#include "base/error.hpp"
#include "temporary_directory.hpp"
#include "tokens/beside.hpp"
#include "tokens/open_tokenizer.hpp"

namespace offstage::tokens {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string const files = OFFSTAGE_TOKENIZERS;

json read(std::string const& name) {
  std::ifstream file{files + "/" + name + ".json"};
  return json::parse(file);
}

/// A tokenizer.json written for a test.
class Written {
 public:
  explicit Written(json const& content) { folder_.write("tokenizer.json", content.dump()); }
  [[nodiscard]] std::unique_ptr<data::Tokenizer> open() const {
    return open_tokenizer(folder_.path().string(), "--tokenizer");
  }
  [[nodiscard]] std::string refusal() const {
    try {
      (void)open();
    } catch (DataError const& error) {
      return error.what();
    }
    return "no error";
  }
  [[nodiscard]] TemporaryDirectory const& folder() const { return folder_; }

 private:
  TemporaryDirectory folder_;
};

std::string refusal_after(std::string const& name, std::function<void(json&)> const& change) {
  auto content = read(name);
  change(content);
  return Written{content}.refusal();
}

std::string text_of(json const& bytes) {
  std::string text;
  for (int const byte : bytes) {
    text += static_cast<char>(byte);
  }
  return text;
}

class Kinds : public testing::TestWithParam<std::string> {};

TEST_P(Kinds, GiveTheTokensAndTextsOfThePackageThatTrainedThem) {
  auto const expected = read("expected");
  auto const& of_kind = expected["tokenizers"][GetParam()];
  auto const tokenizer = open_tokenizer(files + "/" + GetParam() + ".json", "--tokenizer");
  EXPECT_EQ(tokenizer->vocab(), of_kind["vocab"].get<std::int64_t>());
  EXPECT_EQ(tokenizer->frame().before, of_kind["before"].get<std::vector<std::int32_t>>());
  auto const encoder = tokenizer->encoder();
  for (int round = 0; round < 2; ++round) {  // the second time out of its memory
    for (std::size_t i = 0; i < expected["texts"].size(); ++i) {
      auto const text = text_of(expected["texts"][i]);
      std::vector<std::int32_t> tokens;
      encoder->encode(text, tokens);
      EXPECT_EQ(tokens, of_kind["ids"][i].get<std::vector<std::int32_t>>()) << i << ": " << text;
      EXPECT_EQ(tokenizer->decode(tokens), of_kind["decoded"][i].get<std::string>()) << i;
    }
  }
}

/// Every start of a text is cut at every cut, which must not change its tokens.
int check_cuts(data::Tokenizer const& tokenizer, std::string const& text) {
  auto const encoder = tokenizer.encoder();
  std::vector<std::int32_t> tokens{-1};  // what is there already does not count
  std::vector<data::Cut> cuts;
  encoder->encode_with_cuts(text, tokens, cuts);
  tokens.erase(tokens.begin());
  EXPECT_EQ(tokens, tokenizer.encode(text)) << text;
  for (data::Cut const& cut : cuts) {
    for (std::size_t end = cut.behind; end <= text.size(); ++end) {
      if (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
        continue;  // inside a character
      }
      std::vector<std::int32_t> parts{tokens.begin(),
                                      tokens.begin() + static_cast<std::ptrdiff_t>(cut.tokens)};
      encoder->encode(std::string_view{text}.substr(cut.begin, end - cut.begin), parts);
      EXPECT_EQ(parts, tokenizer.encode(std::string_view{text}.substr(0, end)))
          << text << " to " << end << ", cut at " << cut.begin;
    }
  }
  return static_cast<int>(cuts.size());
}

TEST_P(Kinds, FallApartAtTheCutsThatTheyTell) {
  auto const tokenizer = open_tokenizer(files + "/" + GetParam() + ".json", "--tokenizer");
  std::vector<std::string> const pieces{"<|im_start|>",
                                        "<|endoftext|>",
                                        "[MASK]",
                                        "mask",
                                        "don't",
                                        "def ",
                                        "<s>",
                                        "</s>",
                                        "<unk>",
                                        " ",
                                        "\n",
                                        "ship's",
                                        "é",
                                        "e\u0301",
                                        "  a ",
                                        "42"};
  std::mt19937 random{5};
  int cuts = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      text += pieces[random() % pieces.size()];
    }
    try {
      cuts += check_cuts(*tokenizer, text);
    } catch (DataError const&) {  // a tokenizer without a token for a character
    }
  }
  EXPECT_GT(cuts, 20);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Kinds,
                         testing::Values("gpt2", "llama3", "qwen", "llama2", "unigram", "words",
                                         "added"),
                         [](auto const& one) { return one.param; });

TEST(JsonTokenizer, IsRefusedAsAGitLfsPointer) {
  TemporaryDirectory const folder;
  auto const path =
      folder.write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\nsize 9\n");
  EXPECT_THAT([&] { (void)open_tokenizer(path, "--tokenizer"); },
              testing::ThrowsMessage<DataError>(
                  HasSubstr("tokenizer.json: is a Git LFS pointer: run git lfs pull")));
}

TEST(OpenTokenizer, TakesTheSentencePieceModelOfADirectoryWithoutAnother) {
  TemporaryDirectory const folder;
  std::string const directory = folder.path();
  EXPECT_EQ(tokenizer_file(directory), directory + "/tokenizer.json");
  std::filesystem::copy_file(files + "/../../data/sea.model", directory + "/tokenizer.model");
  auto const tokenizer = open_tokenizer(directory, "--tokenizer");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("the sea")), "the sea");
  EXPECT_THAT(tokenizer->frame().before, testing::IsEmpty());
  EXPECT_EQ(tokenizer->name_of(2), "</s>");
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "add_eos_token": null})");
  auto const with_begin = open_tokenizer(directory, "--tokenizer")->frame();
  EXPECT_THAT(with_begin.before, testing::ElementsAre(1));
  EXPECT_THAT(with_begin.behind, testing::IsEmpty());
  folder.write("tokenizer.json", read("gpt2").dump());
  EXPECT_EQ(tokenizer_file(directory), directory + "/tokenizer.json");
}

TEST(JsonTokenizer, GivesTheSameTokensToManyThreads) {
  auto const tokenizer = open_tokenizer(files + "/llama2.json", "--tokenizer");
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "ship " + std::to_string(i * i) + " waits, ";
  }
  auto const expected = tokenizer->encode(text);
  std::vector<std::vector<std::int32_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& tokens : found) {
    threads.emplace_back([&] { tokens = tokenizer->encode(text); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(found, testing::Each(expected));
  EXPECT_EQ(tokenizer->decode(expected), text);
}

// Expected tokens are those of the `tokenizers` package 0.23.3.
TEST(JsonTokenizer, FindsTokensInTheBlanksThatOthersTake) {
  auto content = read("gpt2");
  content["added_tokens"] = json::array();
  std::int32_t const first = 420;
  for (auto const& [text, left, right] :
       {std::tuple{"[R]", false, true}, {"\t", false, false}, {"\n", true, true}}) {
    content["added_tokens"].push_back({{"id", first + content["added_tokens"].size()},
                                       {"content", text},
                                       {"lstrip", left},
                                       {"rstrip", right},
                                       {"normalized", false},
                                       {"special", false}});
  }
  auto const tokenizer = Written{content}.open();
  auto const a = *tokenizer->token("a");
  auto const blank_a = *tokenizer->token("\u0120a");
  EXPECT_THAT(tokenizer->encode("a[R]\t a"), ElementsAre(a, first, first + 1, blank_a))
      << "the text goes on behind the token inside the blanks";
  EXPECT_THAT(tokenizer->encode("a \n\n\n a"), ElementsAre(a, first + 2, a))
      << "nothing is left of the second and the third";
  for (auto const* const text : {"a[R]\t a", "a \n\n\n a", "a[R] \n[R]\t\ta \n \t[R]  a"}) {
    EXPECT_GT(check_cuts(*tokenizer, text), 0);
  }
}

// Expected tokens are those of the `tokenizers` package 0.23.3.
TEST(JsonTokenizer, SpellsTheMarksOfAWordsPartsInBytesToo) {
  json vocabulary{{"a", 0}, {"##a", 1}, {"##a</w>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  }
  auto const tokenizer = Written{{{"version", "1.0"},
                                  {"model",
                                   {{"type", "BPE"},
                                    {"vocab", vocabulary},
                                    {"merges", json::array()},
                                    {"continuing_subword_prefix", "##"},
                                    {"end_of_word_suffix", "</w>"},
                                    {"byte_fallback", true}}}}}
                             .open();
  std::vector<std::int32_t> expected{0};
  for (unsigned char const byte : std::string{"##b##c</w>"}) {
    expected.push_back(3 + byte);
  }
  EXPECT_EQ(tokenizer->encode("abc"), expected);
}

TEST(JsonTokenizer, KnowsTokensByName) {
  auto const tokenizer = open_tokenizer(files + "/added.json", "--tokenizer");
  EXPECT_EQ(tokenizer->token("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer->token("[MASK]"), 420);
  EXPECT_EQ(tokenizer->token("nowhere"), std::nullopt);
  EXPECT_EQ(tokenizer->end_of_document(), std::nullopt);
}

TEST(JsonTokenizer, TakesTheEndTokenOfTheConfigBesideIt) {
  Written const file{read("gpt2")};
  file.folder().write("tokenizer_config.json",
                      R"({"eos_token": "<|endoftext|>", "model_max_length": 1024})");
  EXPECT_EQ(file.open()->end_of_document(), 0);
  file.folder().write("tokenizer_config.json",
                      R"({"eos_token": {"content": "<|im_start|>", "lstrip": false}})");
  EXPECT_EQ(file.open()->end_of_document(), 1);
  file.folder().write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(file.open()->end_of_document(), std::nullopt);
  file.folder().write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(file.refusal(), AllOf(HasSubstr("'</s>'"), HasSubstr("eos_token")));
}

TEST(JsonTokenizer, TakesTheEndTokenOfOtherFilesWhereTheConfigHasNone) {
  Written const file{read("gpt2")};
  file.folder().write("tokenizer_config.json", R"({"model_max_length": 1024})");
  file.folder().write("config.json", R"({"eos_token_id": [1, 2]})");
  EXPECT_EQ(file.open()->end_of_document(), std::nullopt) << "of two none ends a document";
  file.folder().write("config.json", R"({"eos_token_id": 1})");
  EXPECT_EQ(file.open()->end_of_document(), 1);
  file.folder().write("special_tokens_map.json", R"({"eos_token": "<|endoftext|>"})");
  EXPECT_EQ(file.open()->end_of_document(), 0);
  file.folder().write("config.json", R"({"eos_token_id": "<|endoftext|>"})");
  EXPECT_THAT(file.refusal(), AllOf(HasSubstr("config.json"), HasSubstr("eos_token_id")));
}

TEST(Beside, HasTheEndsOfAModelsTexts) {
  TemporaryDirectory const folder;
  auto const ends = [&] {
    return read_beside((folder.path() / "tokenizer.json").string(), "--from").ends;
  };
  EXPECT_THAT(ends(), testing::IsEmpty());
  folder.write("config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(ends(), testing::ElementsAre(7));
  folder.write("generation_config.json", R"({"eos_token_id": [7, 9]})");
  EXPECT_THAT(ends(), testing::ElementsAre(7, 9));
}

TEST(VocabOfTexts, LeavesOutTheLastTokenIfItIsAPadAndNothingElse) {
  auto const tokenizer = Written{read("added")}.open();
  auto const all = tokenizer->vocab();
  ASSERT_EQ(tokenizer->token("<s>a"), all - 1);
  Beside beside;
  auto const vocab = [&] { return vocab_of_texts(*tokenizer, beside); };
  EXPECT_EQ(vocab(), all);
  beside.pad = "<s>";
  EXPECT_EQ(vocab(), all) << "it is not the last";
  beside.pad = "<s>a";
  EXPECT_EQ(vocab(), all - 1);
  beside.end = "<s>";
  EXPECT_EQ(vocab(), all - 1);
  beside.end = "<s>a";
  EXPECT_EQ(vocab(), all) << "it ends texts too";
  beside.end.reset();
  beside.special = {"<s>a"};
  EXPECT_EQ(vocab(), all);
}

TEST(OpenTokenizer, RefusesOneWithoutATokenThatTheFilesBesideItName) {
  auto const refusal = [](std::string const& directory) {
    try {
      (void)open_tokenizer(directory, "--tokenizer");
      return std::string{};
    } catch (DataError const& error) {
      return std::string{error.what()};
    }
  };
  for (bool const pieces : {false, true}) {
    TemporaryDirectory const folder;
    if (pieces) {
      std::filesystem::copy_file(files + "/../../data/sea.model",
                                 folder.path() / "tokenizer.model");
    } else {
      folder.write("tokenizer.json", read("gpt2").dump());
    }
    folder.write(
        "tokenizer_config.json",
        R"({"pad_token": "[PAD]", "added_tokens_decoder": {"1000": {"content": "[PAD]"}}})");
    EXPECT_EQ(refusal(folder.path()), "") << "no text has it";
    folder.write("added_tokens.json", R"({"<|im_end|>": 1001})");
    EXPECT_THAT(refusal(folder.path()),
                AllOf(HasSubstr("no token '<|im_end|>'"), HasSubstr("added_tokens.json"),
                      HasSubstr("1001"), HasSubstr("save_pretrained")));
    std::filesystem::remove(folder.path() / "added_tokens.json");
    folder.write("tokenizer_config.json",
                 R"({"added_tokens_decoder": {"1000": {"content": "<|im_start|>1"}}})");
    EXPECT_THAT(refusal(folder.path()),
                AllOf(HasSubstr("'<|im_start|>1'"), HasSubstr("tokenizer_config.json")));
    folder.write("tokenizer_config.json", R"({"eos_token": "<|nowhere|>"})");
    EXPECT_THAT(refusal(folder.path()), AllOf(HasSubstr("'<|nowhere|>'"), HasSubstr("eos_token")));
    folder.write("tokenizer_config.json", pieces ? R"({"eos_token": "<s>"})" : "{}");
    EXPECT_EQ(open_tokenizer(folder.path(), "--tokenizer")->end_of_document(),
              pieces ? std::optional{1} : std::nullopt);
  }
}

TEST(JsonTokenizer, TakesAddedTokensByTheNumbersOfThePackageAlone) {
  auto const refusal = [](std::vector<int> const& behind) {
    return refusal_after("gpt2", [&](json& content) {
      auto const known = content["model"]["vocab"].size();
      auto token = content["added_tokens"][0];
      for (int const number : behind) {
        token["id"] = known + static_cast<std::size_t>(number);
        token["content"] = fmt::format("<new {}>", number);
        content["added_tokens"].push_back(token);
      }
    });
  };
  EXPECT_EQ(refusal({0, 1}), "no error");
  EXPECT_THAT(refusal({1, 0}), HasSubstr("the tokenizers package makes it"));
  EXPECT_THAT(refusal({0, 2}), HasSubstr("the tokenizers package makes it"));
}

TEST(OpenTokenizer, WarnsOfSpecialTokensThatAreNone) {
  TemporaryDirectory const folder;
  folder.write("tokenizer.json", read("gpt2").dump());
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<none>"}, "pad_token": "<pad>",
      "additional_special_tokens": ["<pad>", "<|endoftext|>", {"content": "<neither>"}],
      "added_tokens_decoder": {"0": {"content": "<|endoftext|>", "lstrip": false, "rstrip": true}}})");
  testing::internal::CaptureStderr();
  (void)open_tokenizer(folder.path(), "--tokenizer");
  std::string const said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("no token '<none>' and 1 more"));
  EXPECT_THAT(said,
              HasSubstr("single_word of '<|endoftext|>' are others in tokenizer_config.json"));
  EXPECT_THAT(said, testing::Not(HasSubstr("<pad>")));
}

TEST(OpenTokenizer, SaysWhatADirectoryLacks) {
  TemporaryDirectory const folder;
  folder.write("vocab.json", "{}");
  EXPECT_THROW(
      {
        try {
          (void)open_tokenizer(folder.path(), "--tokenizer");
        } catch (DataError const& error) {
          EXPECT_THAT(error.what(), HasSubstr("has no tokenizer.json and no tokenizer.model"));
          throw;
        }
      },
      DataError);
  for (std::string const name : {"Org/Name", "lost/tokenizer.json", "lost.model"}) {
    try {
      (void)open_tokenizer(name, "--tokenizer");
      FAIL() << name;
    } catch (DataError const& error) {
      EXPECT_THAT(error.what(), HasSubstr("--tokenizer=" + name + ": there is no such file"));
      EXPECT_THAT(error.what(), HasSubstr("hf download ORG/NAME"));
    }
  }
}

TEST(JsonTokenizer, RefusesByFieldAndValueWhatItDoesNotKnow) {
  struct Case {
    std::string name;
    std::function<void(json&)> change;
    std::vector<std::string> words;
  };
  std::vector<Case> const cases{
      {"gpt2",
       [](json& j) { j["model"]["type"] = "WordPiece"; },
       {"model.type", "'WordPiece'", "BPE, Unigram"}},
      {"gpt2", [](json& j) { j["model"]["dropout"] = 0.1; }, {"model.dropout"}},
      {"gpt2", [](json& j) { j["model"]["warp"] = 1; }, {"model.warp", "not known here", "1"}},
      {"gpt2",
       [](json& j) { j["model"]["merges"][3] = "a b c"; },
       {"model.merges", "number 3", "a b c"}},
      {"gpt2",
       [](json& j) {
         j["model"]["merges"][3] = {"zz", "zy"};
       },
       {"number 3", "'zz'", "does not have"}},
      {"gpt2", [](json& j) { j["model"]["vocab"]["a"] = -1; }, {"model.vocab", "'a'", "-1"}},
      {"gpt2",
       [](json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; },
       {"model.vocab", "same number"}},
      {"gpt2", [](json& j) { j["model"]["unk_token"] = "<none>"; }, {"model.unk_token", "<none>"}},
      {"gpt2",
       [](json& j) { j["pre_tokenizer"]["type"] = "UnicodeScripts"; },
       {"pre_tokenizer.type", "UnicodeScripts"}},
      {"llama3",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Merge"; },
       {"pre_tokenizer.pretokenizers[0].behavior", "'Merge'", "Isolated"}},
      {"llama3",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\bword"; },
       {"pretokenizers[0].pattern.Regex", "'\\b'"}},
      {"llama3",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a*"; },
       {"empty text"}},
      {"llama3",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
       {"(a", "compiled"}},
      {"qwen",
       [](json& j) { j["normalizer"]["type"] = "BertNormalizer"; },
       {"normalizer.type", "BertNormalizer"}},
      {"qwen",
       [](json& j) { j["normalizer"]["form"] = "C"; },
       {"normalizer.form", "not known here"}},
      {"llama2",
       [](json& j) { j["decoder"]["decoders"][1]["type"] = "CTC"; },
       {"decoder.decoders[1].type", "'CTC'"}},
      {"llama2",
       [](json& j) {
         j["post_processor"]["single"][0] = {{"SpecialToken", {{"id", "<x>"}, {"type_id", 0}}}};
       },
       {"post_processor.single[0].SpecialToken.id", "<x>"}},
      {"added",
       [](json& j) { j["added_tokens"][0]["id"] = 7; },
       {"added_tokens[0].id", "7", "<|endoftext|>"}},
      {"added",
       [](json& j) { j["added_tokens"][0]["greedy"] = true; },
       {"added_tokens[0].greedy", "true"}},
      {"unigram", [](json& j) { j["model"]["vocab"][2] = "x"; }, {"model.vocab", "number 2"}},
      {"unigram", [](json& j) { j["model"]["unk_id"] = 100000; }, {"model.unk_id", "100000"}},
      {"unigram", [](json& j) { j["version"] = "2.0"; }, {"version", "'2.0'", "1.0"}},
      {"unigram", [](json& j) { j["model"].erase("vocab"); }, {"model.vocab"}},
      {"unigram", [](json& j) { j.erase("model"); }, {"model", "missing"}},
  };
  for (Case const& one : cases) {
    auto const refusal = refusal_after(one.name, one.change);
    EXPECT_THAT(refusal, HasSubstr("tokenizer.json"));
    for (std::string const& word : one.words) {
      EXPECT_THAT(refusal, HasSubstr(word));
    }
  }
}

TEST(JsonTokenizer, RefusesACharacterThatNoTokenStandsFor) {
  auto content = read("unigram");
  content["model"]["unk_id"] = nullptr;
  auto const tokenizer = Written{content}.open();
  EXPECT_THROW((void)tokenizer->encode("\U0001F6A2"), DataError);
}

TEST(JsonTokenizer, TakesOfWaysOfOneScoreTheFirstOfThePackage) {
  auto content = read("unigram");
  content["model"]["vocab"] = json::parse(R"([["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0],
      ["\u2581", -1.0], ["a", -1.0], ["b", -1.0], ["ab", -2.0]])");
  auto const tokenizer = Written{content}.open();
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(3, 6)) << "'ab' begins before 'b'";
  EXPECT_THAT(tokenizer->encode("ba"), ElementsAre(3, 5, 4));
}

TEST(JsonTokenizer, RefusesFilesThatAreNone) {
  TemporaryDirectory const folder;
  for (std::string const text :
       {"no json", "[1]", "{\"version\": \"1.0\", \"version\": \"1.0\"}"}) {
    auto const path = folder.write("a.json", text);
    EXPECT_THROW((void)open_tokenizer(path, "--tokenizer"), DataError) << text;
  }
  EXPECT_THROW((void)open_tokenizer("/nowhere/tokenizer.json", "--tokenizer"), DataError);
  EXPECT_EQ(open_tokenizer("bytes", "--tokenizer")->vocab(), 256);
}

}  // namespace
}  // namespace offstage::tokens
