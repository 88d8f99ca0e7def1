#include "data/text_documents.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Pieces = std::vector<std::pair<std::string, std::string>>;

Pieces documents_of(std::string const& path, Documents kind) {
  auto const stream = open_stream(path, "--from");
  TextDocuments documents{*stream, kind};
  TextDocuments::Document document;
  Pieces pieces;
  while (documents.next(document)) {
    pieces.emplace_back(document.text, document.end);
  }
  return pieces;
}

Pieces documents_in(std::string_view text, Documents kind) {
  TemporaryDirectory const folder;
  return documents_of(folder.write("a.txt", text), kind);
}

std::string joined(Pieces const& pieces) {
  std::string text;
  for (auto const& [words, end] : pieces) {
    text += words + end;
  }
  return text;
}

TEST(TextDocuments, AFileIsOne) {
  EXPECT_THAT(documents_in("a\n\nb\n", Documents::file), ElementsAre(Pair("a\n\nb\n", "")));
}

TEST(TextDocuments, ALineIsOneWithoutItsEnd) {
  EXPECT_THAT(documents_in("a\nb c\r\n\nd", Documents::line),
              ElementsAre(Pair("a", "\n"), Pair("b c", "\r\n"), Pair("", "\n"), Pair("d", "")));
}

TEST(TextDocuments, AByteOrderMarkIsNoPartOfThem) {
  for (auto const kind : {Documents::file, Documents::line, Documents::blank, Documents::json}) {
    EXPECT_THAT(documents_in("\xEF\xBB\xBFone\xEF\xBB\xBF", kind),
                ElementsAre(Pair("one\xEF\xBB\xBF", "")));
  }
  EXPECT_THAT(documents_in("\xEF\xBB\xBF", Documents::file), ElementsAre());
}

TEST(TextDocuments, BlankLinesPartThem) {
  EXPECT_THAT(documents_in("a\nb\n\n \t\nc\n\r\nd", Documents::blank),
              ElementsAre(Pair("a\nb", "\n\n \t\n"), Pair("c", "\n\r\n"), Pair("d", "")));
  EXPECT_THAT(documents_in("\n\na\n", Documents::blank),
              ElementsAre(Pair("", "\n\n"), Pair("a", "\n")));
  EXPECT_THAT(documents_in("a\n\n", Documents::blank), ElementsAre(Pair("a", "\n\n")));
  EXPECT_THAT(documents_in("\n", Documents::blank), ElementsAre(Pair("", "\n")));
}

TEST(TextDocuments, AllOfThemTogetherAreTheFile) {
  std::string text;
  for (int i = 0; i < 300'000; ++i) {
    text += std::string(static_cast<std::size_t>(i * 7 % 23), 'x') + (i % 5 == 0 ? "\r\n" : "\n");
  }
  ASSERT_GT(text.size(), 3U * MiB);
  for (auto const kind : {Documents::file, Documents::line, Documents::blank}) {
    EXPECT_EQ(joined(documents_in(text, kind)), text);
  }
}

TEST(TextDocuments, BytesOfAnyKindAreText) {
  std::string const text{"\0\xFF\n\0", 4};
  for (auto const kind : {Documents::file, Documents::line, Documents::blank}) {
    EXPECT_EQ(joined(documents_in(text, kind)), text);
  }
}

TEST(TextDocuments, RefusesADocumentThatMemoryShallNotHold) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "x");
  std::filesystem::resize_file(path, TextDocuments::largest_document + 1);  // sparse
  EXPECT_THAT(data_error([&] { (void)documents_of(path, Documents::file); }),
              HasSubstr("--documents=line"));
}

}  // namespace
}  // namespace offstage::data
