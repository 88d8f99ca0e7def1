#include "data/dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <numeric>
#include <set>

#include "base/random.hpp"
#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int32_t none = ignored_target;

DatasetOptions options(std::int64_t sequence) {
  return {.key = "data.train", .vocab = 256, .sequence = sequence};
}

DatasetOptions within_documents(std::int64_t sequence, std::optional<std::int32_t> separator = {}) {
  auto result = options(sequence);
  result.rule = WindowRule::apart;
  result.separator = separator;
  return result;
}

TokenBatch all_windows(Dataset const& dataset) {
  std::vector<std::int64_t> windows(static_cast<std::size_t>(dataset.windows()));
  std::iota(windows.begin(), windows.end(), 0);
  return dataset.batch(windows);
}

TEST(Dataset, NeighbouringWindowsShareOneToken) {
  TemporaryDirectory const folder;
  Dataset const dataset{{{folder.write("a.txt", "abcdefgh")}}, options(3)};
  ASSERT_EQ(dataset.windows(), 2);  // abc|d and def|g; h starts no window
  std::vector<std::int64_t> const order{1, 0};
  TokenBatch const batch = dataset.batch(order);
  EXPECT_EQ(batch.batch, 2);
  EXPECT_EQ(batch.sequence, 3);
  EXPECT_THAT(batch.tokens, ElementsAre('d', 'e', 'f', 'a', 'b', 'c'));
  EXPECT_THAT(batch.targets, ElementsAre('e', 'f', 'g', 'b', 'c', 'd'));
  EXPECT_EQ(counted_targets(batch), 6);
}

TEST(Dataset, SequenceAndOneTokensAreOneWindow) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abcd");
  EXPECT_EQ((Dataset{{{path}}, options(3)}.windows()), 1);
  EXPECT_EQ((Dataset{{{path}}, options(3)}.shuffled(7, 1)), 0);
  EXPECT_THAT(data_error([&] {
                Dataset{{{path}}, options(4)};
              }),
              AllOf(HasSubstr("data.train=" + path), HasSubstr("has 4 tokens"),
                    HasSubstr("train.sequence=4 needs at least 5")));
}

TEST(Dataset, AShortFileOfAPatternIsLeftOut) {
  TemporaryDirectory const folder;
  folder.write("0.txt", "");
  folder.write("1.txt", "ab");
  folder.write("2.txt", "abcdefgh");
  folder.write("3.txt", "abc");
  Dataset const dataset{{{(folder.path() / "?.txt").string()}}, options(3)};
  EXPECT_EQ(dataset.windows(), 2);
  EXPECT_THAT(dataset.short_files(),
              ElementsAre((folder.path() / "0.txt").string(), (folder.path() / "1.txt").string(),
                          (folder.path() / "3.txt").string()));
  ASSERT_EQ(dataset.files().size(), 1);
  EXPECT_EQ(dataset.files()[0].path, (folder.path() / "2.txt").string());
  EXPECT_THAT(data_error([&] {
                Dataset{
                    {{(folder.path() / "2.txt").string()}, {(folder.path() / "[13].txt").string()}},
                    options(3)};
              }),
              HasSubstr("/3.txt: has 3 tokens"));
}

TEST(Dataset, AShortFileIsRefusedAmongOthersToo) {
  TemporaryDirectory const folder;
  auto const good = folder.write("a.txt", "abcdefgh");
  auto const bad = folder.write("b.txt", "abc");
  EXPECT_THAT(data_error([&] {
                Dataset{{{good}, {bad}}, options(3)};
              }),
              HasSubstr("data.train=" + bad + ": has 3 tokens"));
}

TEST(Dataset, EveryEpochShowsEveryWindowOnceInItsOwnOrder) {
  TemporaryDirectory const folder;
  Dataset const dataset{{{folder.write("a.txt", std::string(301, 'x'))}}, options(3)};
  ASSERT_EQ(dataset.windows(), 100);
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t const seed : {1U, 2U}) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> order;
      for (std::int64_t s = 0; s < 100; ++s) {
        order.push_back(dataset.shuffled(epoch * 100 + s, seed));
      }
      orders.insert(order);
      std::vector<std::int64_t> all(100);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_THAT(order, testing::UnorderedElementsAreArray(all));
    }
  }
  EXPECT_EQ(orders.size(), 6U);
}

TEST(Dataset, OneFileIsDealtInTheOrderOfTheShuffleAlone) {
  // Checkpoints of earlier versions go on with the same order.
  TemporaryDirectory const folder;
  Dataset const dataset{{{folder.write("a.txt", std::string(301, 'x')), 0.25}}, options(3)};
  for (std::int64_t s = 0; s < 250; ++s) {
    auto const i = static_cast<std::uint64_t>(s);
    EXPECT_EQ(dataset.shuffled(s, 7),
              static_cast<std::int64_t>(shuffled(i % 100, 100, 7, i / 100)));
  }
  EXPECT_EQ(dataset.shuffled(0, 7), 40);
}

TEST(Dataset, SeveralFilesAreShownByWeightAndEachOncePerEpoch) {
  TemporaryDirectory const folder;
  Dataset const dataset{{{folder.write("a.txt", std::string(101, 'a')), 3.0},
                         {folder.write("b.txt", std::string(201, 'b')), 1.0}},
                        options(2)};
  ASSERT_EQ(dataset.windows(), 150);
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> second;
  for (std::int64_t s = 0; s < 6'400; ++s) {
    auto const window = dataset.shuffled(s, 11);
    (window < 50 ? first : second).push_back(window);
  }
  EXPECT_EQ(first.size(), 4'800U);
  EXPECT_EQ(second.size(), 1'600U);
  auto const expect_epochs = [](std::vector<std::int64_t> const& shown, std::int64_t windows) {
    for (auto begin = shown.begin(); begin < shown.end(); begin += windows) {
      std::set<std::int64_t> const epoch{begin, begin + windows};
      EXPECT_EQ(std::ssize(epoch), windows);
    }
  };
  expect_epochs(first, 50);
  expect_epochs(second, 100);
}

TEST(Dataset, FilesOfEqualLengthAreNotShuffledAlike) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", std::string(201, 'a'));
  Dataset const dataset{{{path, 1.0}, {path, 1.0}}, options(2)};
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> second;
  for (std::int64_t s = 0; s < 192; ++s) {
    auto const window = dataset.shuffled(s, 3);
    (window < 100 ? first : second).push_back(window % 100);
  }
  EXPECT_EQ(first.size(), second.size());
  EXPECT_NE(first, second);
}

TEST(Dataset, AWindowOfSeveralFilesComesFromItsOwn) {
  TemporaryDirectory const folder;
  Dataset const dataset{{{folder.write("a.txt", "abcde")}, {folder.write("b.txt", "vwxyz")}},
                        options(2)};
  ASSERT_EQ(dataset.windows(), 4);
  EXPECT_THAT(all_windows(dataset).tokens, ElementsAre('a', 'b', 'c', 'd', 'v', 'w', 'x', 'y'));
  EXPECT_THAT(all_windows(dataset).targets, ElementsAre('b', 'c', 'd', 'e', 'w', 'x', 'y', 'z'));
}

TEST(Dataset, DocumentsAreNotCrossedOnRequest) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abcdefg", "h", "", "ij", "klmn"});
  EXPECT_EQ((Dataset{{{path}}, options(3)}.windows()), 4);
  Dataset const dataset{{{path}}, within_documents(3)};
  ASSERT_EQ(dataset.windows(), 4);  // abc|d def|g, none of h, ij, klm|n
  TokenBatch const batch = all_windows(dataset);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'i', 0, 0, 'k', 'l', 'm'));
  EXPECT_THAT(batch.targets,
              ElementsAre('b', 'c', 'd', 'e', 'f', 'g', 'j', none, none, 'l', 'm', 'n'));
  EXPECT_EQ(counted_targets(batch), 10);
}

TEST(Dataset, EveryTokenButTheFirstOfADocumentIsATargetOnce) {
  TemporaryDirectory const folder;
  std::vector<std::string> documents;
  std::int64_t followed{};
  for (std::size_t n = 0; n < 40; ++n) {
    documents.emplace_back(n * 7 % 23, static_cast<char>('a' + n % 26));
    followed += std::max<std::int64_t>(1, std::ssize(documents.back())) - 1;
  }
  auto const path = write_documents(folder, "a", documents);
  for (std::int64_t const sequence : {1, 2, 5, 22, 23, 1'000}) {
    Dataset const dataset{{{path}}, within_documents(sequence)};
    auto const batch = all_windows(dataset);
    EXPECT_EQ(counted_targets(batch), followed) << sequence;
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      EXPECT_EQ(batch.targets[i], batch.targets[i] == none ? none : batch.tokens[i]);
    }
  }
}

TEST(Dataset, ASeparatorTellsDocumentsApartWhereTheFormatDoesNot) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abc|d|");
  Dataset const dataset{{{path}}, within_documents(4, '|')};
  EXPECT_THAT(all_windows(dataset).tokens, ElementsAre('a', 'b', 'c', 0, 'd', 0, 0, 0));
  EXPECT_THAT(all_windows(dataset).targets,
              ElementsAre('b', 'c', '|', none, '|', none, none, none));
  // The format's word comes first.
  auto const stored = write_documents(folder, "b", {"ab|cd"});
  EXPECT_EQ((Dataset{{{stored}}, within_documents(4, '|')}.windows()), 1);
}

TEST(Dataset, ASeparatorIsIgnoredWhereTheFormatStoresDocuments) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abc", "defg"});
  EXPECT_FALSE((Dataset{{{path}}, within_documents(3)}.files()[0].ignores_separator));
  auto const facts = Dataset{{{path}}, within_documents(3, 'b')}.files()[0];
  EXPECT_TRUE(facts.ignores_separator);
  EXPECT_EQ(facts.windows, 2);
}

TEST(Dataset, RefusesDocumentsThatNothingTellsApart) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abc|d|");
  EXPECT_THAT(data_error([&] {
                Dataset{{{path}}, within_documents(4)};
              }),
              AllOf(HasSubstr("data.train=" + path), HasSubstr("text data"),
                    HasSubstr("data.cross-documents"), HasSubstr("data.separator")));
  for (std::int32_t const separator : {-1, 256}) {
    EXPECT_THAT(data_error([&] {
                  Dataset{{{path}}, within_documents(4, separator)};
                }),
                AllOf(HasSubstr("data.separator=" + std::to_string(separator)),
                      HasSubstr("model.vocab=256")));
  }
}

TEST(Dataset, RefusesDocumentsWithoutAnyTarget) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"a", "b", "c"});
  EXPECT_THAT(data_error([&] {
                Dataset{{{path}}, within_documents(4)};
              }),
              AllOf(HasSubstr("3 tokens in 3 documents"), HasSubstr("2 tokens or more")));
}

TEST(Dataset, RefusesAWindowThatIsNotThere) {
  TemporaryDirectory const folder;
  Dataset const dataset{{{folder.write("a.txt", "abcd")}}, options(3)};
  std::vector<std::int64_t> const beyond{1};
  std::vector<std::int64_t> const negative{-1};
  EXPECT_THROW((void)dataset.batch(beyond), PreconditionError);
  EXPECT_THROW((void)dataset.batch(negative), PreconditionError);
  EXPECT_THROW((void)dataset.shuffled(-1, 1), PreconditionError);
}

TEST(Dataset, WhatBecomesShorterDuringTheRunIsADataError) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", std::string(10'000, 'x'));
  Dataset const dataset{{{path}}, options(99)};
  std::filesystem::resize_file(path, 5'000);
  std::vector<std::int64_t> const kept{0};
  EXPECT_EQ(dataset.batch(kept).tokens.size(), 99U);
  std::vector<std::int64_t> const gone{100};
  EXPECT_THAT(data_error([&] { (void)dataset.batch(gone); }),
              AllOf(HasSubstr("data.train=" + path), HasSubstr("had 10000 bytes"),
                    HasSubstr("ends before byte 9900")));
}

TEST(Dataset, CountsWindowsWithAndWithoutPadding) {
  EXPECT_EQ(count_windows(8, 3, false), 2);
  EXPECT_EQ(count_windows(8, 3, true), 3);
  EXPECT_EQ(count_windows(7, 3, true), 2);
  EXPECT_EQ(count_windows(1, 3, true), 0);
  EXPECT_EQ(count_windows(0, 3, true), 0);
}

TEST(Dataset, TextOfAnotherVocabularyIsRefusedUnlessItsFormatIsGiven) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abcdefgh");
  for (std::int64_t const vocab : {128, 255, 257, 32'000}) {
    auto other = options(3);
    other.vocab = vocab;
    EXPECT_THAT(
        data_error([&] { Dataset const dataset({{path}}, other); }),
        AllOf(HasSubstr("data.train=" + path), HasSubstr("looks like text"),
              HasSubstr(fmt::format("model.vocab={}", vocab)), HasSubstr("data.format=text")));
    other.format = Format::text;
    EXPECT_EQ(Dataset({{path}}, other).windows(), 2);
  }
}

TEST(Dataset, TellsOfItsFiles) {
  TemporaryDirectory const folder;
  folder.write("b.idx", Index{{3, 2}}.bytes());
  folder.write("b.bin", array_of<std::uint16_t>({1, 2, 3, 4, 5}));
  std::vector<Source> const sources{{folder.write("a.txt", "abcdefgh|j"), 3.0},
                                    {(folder.path() / "b").string(), 1.0}};
  auto const files = Dataset{sources, options(3)}.files();
  ASSERT_EQ(files.size(), 2);
  EXPECT_EQ(files[0].path, sources[0].path);
  EXPECT_EQ(files[0].format, Format::text);
  EXPECT_EQ(files[0].tokens, 10);
  EXPECT_EQ(files[0].documents, std::nullopt);
  EXPECT_EQ(files[0].windows, 3);
  EXPECT_EQ(files[0].share, 0.75);
  EXPECT_EQ(files[1].type, TokenType::u16);
  EXPECT_EQ(files[1].documents, 2);
  EXPECT_EQ(files[1].windows, 1);
  auto const within = Dataset{sources, within_documents(3, '|')}.files();
  EXPECT_EQ(within[0].documents, 2);
}

TEST(Dataset, ChecksumsAreOfTokensWhateverTheirFormatAndOfMasks) {
  TemporaryDirectory const folder;
  auto const checksum = [&](std::string const& path) {
    return Dataset{{{path}}, options(3)}.files()[0].checksum;
  };
  std::string text(5000, 'a');
  auto const first = checksum(folder.write("a.txt", text));
  folder.write("b.idx", Index{{5000}}.bytes());
  folder.write("b.bin", array_of<std::uint16_t>(std::vector<std::uint16_t>(5000, 'a')));
  EXPECT_EQ(checksum((folder.path() / "b").string()), first);
  for (std::size_t const place : {0U, 333U, 4999U}) {
    text[place] = 'b';
    EXPECT_NE(checksum(folder.write("c.txt", text)), first) << place;
    text[place] = 'a';
  }
  EXPECT_NE(checksum(folder.write("short.txt", "aaaa")), first);
  std::string mask(5000, '\1');
  auto const masked = [&](std::uint64_t counted) {
    folder.write("a.txt.mask", "OFFMASK1" + array_of<std::uint64_t>({5000, counted, 0, 0}) + mask);
    return checksum((folder.path() / "a.txt").string());
  };
  folder.write("a.txt", text);
  auto const all_count = masked(5000);
  EXPECT_NE(all_count, first);
  mask[4999] = '\0';
  EXPECT_NE(masked(4999), all_count);
}

std::vector<std::int64_t> samples(Dataset const& dataset, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> windows;
  for (std::int64_t s = begin; s < end; ++s) {
    windows.push_back(dataset.shuffled(s, 7));
  }
  return windows;
}

TEST(Dataset, FilesWithoutWeightsAreDealtLikeOneFile) {
  TemporaryDirectory const folder;
  auto const small = folder.write("small.txt", std::string(31, 's'));
  auto const large = folder.write("large.txt", std::string(301, 'l'));
  Dataset const apart{{{small}, {large}}, options(3)};
  Dataset const whole{{{folder.write("whole.txt", std::string(331, 'w'))}}, options(3)};
  ASSERT_EQ(apart.windows(), 110);
  // Each epoch has every window once.
  for (std::int64_t const epoch : {0, 1}) {
    auto windows = samples(apart, 110 * epoch, 110 * (epoch + 1));
    EXPECT_EQ(windows, samples(whole, 110 * epoch, 110 * (epoch + 1)));
    std::ranges::sort(windows);
    EXPECT_EQ(std::ranges::adjacent_find(windows), windows.end());
  }
  auto const files = apart.files();
  EXPECT_DOUBLE_EQ(files[0].share, 10.0 / 110.0);
  EXPECT_DOUBLE_EQ(files[1].share, 100.0 / 110.0);
}

TEST(Dataset, APatternsFilesAreThoseThatItNames) {
  TemporaryDirectory const folder;
  auto const first = folder.write("s_0.txt", std::string(31, 'a'));
  auto const second = folder.write("s_1.txt", std::string(91, 'b'));
  auto const other = folder.write("other.txt", std::string(61, 'c'));
  auto const pattern = (folder.path() / "s_?.txt").string();
  EXPECT_EQ(samples(Dataset{{{pattern}, {other}}, options(3)}, 0, 100),
            samples(Dataset{{{first}, {second}, {other}}, options(3)}, 0, 100));
  // Files of a pattern share its weight by their sizes.
  Dataset const weighted{{{pattern, 1.0}, {other, 3.0}}, options(3)};
  auto const files = weighted.files();
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].path, first);
  EXPECT_DOUBLE_EQ(files[0].share, 0.25 * 10 / 40);
  EXPECT_DOUBLE_EQ(files[1].share, 0.25 * 30 / 40);
  EXPECT_DOUBLE_EQ(files[2].share, 0.75);
  auto const windows = samples(weighted, 0, 160);
  EXPECT_EQ(std::ranges::count_if(windows, [](std::int64_t w) { return w < 40; }), 40);
  EXPECT_THAT(data_error([&] { Dataset const nothing({{pattern + "x"}}, options(3)); }),
              HasSubstr("data.train=" + pattern + "x: no file matches"));
}

TEST(Dataset, RowsThatFillABatchUpDoNotCount) {
  TemporaryDirectory const folder;
  Dataset const dataset{{{folder.write("a.txt", "abcdefgh")}}, options(3)};
  std::vector<std::int64_t> const windows{1};
  auto batch = dataset.batch(windows);
  fill_up(batch, 3);
  EXPECT_EQ(batch.batch, 3);
  EXPECT_THAT(batch.tokens, ElementsAre('d', 'e', 'f', 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre('e', 'f', 'g', none, none, none, none, none, none));
  EXPECT_EQ(counted_targets(batch), 3);
}

DatasetOptions whole_documents(std::int64_t sequence) {
  auto result = options(sequence);
  result.rule = WindowRule::whole;
  return result;
}

TEST(WholeDocuments, ShareAWindowWithoutTargetsAcross) {
  TemporaryDirectory const folder;
  // 4 + 2 fill a window of 6 tokens; 5 has one of its own; one token has no target.
  auto const path = write_documents(folder, "a", {"abcd", "v", "mnopq", "xy"});
  Dataset const dataset{{{path}}, whole_documents(5)};
  ASSERT_EQ(dataset.windows(), 2);
  auto const batch = all_windows(dataset);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 'c', 'd', 'x', 'm', 'n', 'o', 'p', 'q'));
  EXPECT_THAT(batch.targets, ElementsAre('b', 'c', 'd', none, 'y', 'n', 'o', 'p', 'q', none));
  auto const facts = dataset.files()[0];
  EXPECT_EQ(facts.left_out, 1);
  EXPECT_EQ(facts.cut, 0);
  EXPECT_DOUBLE_EQ(*facts.filled, 11.0 / 12.0);
}

TEST(WholeDocuments, ThatAreLongerAreCutAndCounted) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abcdefgh", "xy"});
  Dataset const dataset{{{path}}, whole_documents(3)};
  auto const batch = all_windows(dataset);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 'c', 'x', 'y', 0));
  EXPECT_THAT(batch.targets, ElementsAre('b', 'c', 'd', 'y', none, none));
  EXPECT_EQ(dataset.files()[0].cut, 1);
  EXPECT_EQ(dataset.files()[0].lost, 4);  // efgh
}

DatasetOptions held_apart(DatasetOptions of) {
  of.documents_apart = true;
  return of;
}

TEST(DocumentsApart, BeginWhereTheyBeginInWindowsThatCrossThem) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"ab", "c", "defghij", "kl", "m"});
  Dataset const dataset{{{path}}, held_apart(options(4))};
  auto const batch = all_windows(dataset);
  // ab c d|e, efgh|i, ijkl|m
  EXPECT_THAT(batch.tokens,
              ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l'));
  EXPECT_THAT(batch.targets,
              ElementsAre('b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm'));
  EXPECT_THAT(batch.begins, ElementsAre(0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 2, 2));
  EXPECT_DOUBLE_EQ(*dataset.files()[0].attended, (5.0 + 10.0 + 6.0) / 30.0);
}

TEST(DocumentsApart, LeaveAShareOfWhatAWindowOfTheModelShows) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abcd", "efgh", "i"});
  auto of = held_apart(options(8));
  EXPECT_DOUBLE_EQ(Dataset({{path}}, of).attended(), 20.0 / 36.0);
  of.keys_seen = 3;  // pairs of a document of 4: 1 + 2 + 3 + 3, of the sequence: 1 + 2 + 6 times 3
  EXPECT_DOUBLE_EQ(Dataset({{path}}, of).attended(), 18.0 / 21.0);
  of.keys_seen = 8;
  EXPECT_DOUBLE_EQ(Dataset({{path}}, of).attended(), 20.0 / 36.0);
}

// More windows than are looked at; those of the second half are one document each.
TEST(DocumentsApart, LeaveAShareThatIsThatOfTheWholeFile) {
  TemporaryDirectory const folder;
  std::vector<std::string> documents(16'000, "ab");
  documents.resize(24'000, "abcd");
  Dataset const dataset{{{write_documents(folder, "a", documents)}}, held_apart(options(4))};
  EXPECT_NEAR(dataset.attended(), (0.6 + 1.0) / 2, 0.01);
}

TEST(DocumentsApart, AreEndedByASeparatorWhereTheFormatDoesNotSay) {
  TemporaryDirectory const folder;
  auto of = held_apart(options(4));
  of.separator = '.';
  Dataset const dataset{{{folder.write("a.txt", "ab.cd..ef")}}, of};
  auto const batch = all_windows(dataset);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', '.', 'c', 'd', '.', '.', 'e'));
  EXPECT_THAT(batch.begins, ElementsAre(0, 0, 0, 3, 0, 0, 2, 3));
  EXPECT_EQ(dataset.files()[0].documents, 4);
}

TEST(DocumentsApart, BeginOneBehindTheOtherInWindowsOfWholeOnes) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abcd", "v", "mnop", "xy"});
  Dataset const dataset{{{path}}, held_apart(whole_documents(5))};
  auto batch = all_windows(dataset);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 'c', 'd', 0, 'm', 'n', 'o', 'p', 'x'));
  EXPECT_THAT(batch.begins, ElementsAre(0, 0, 0, 0, 4, 0, 0, 0, 0, 4));
  EXPECT_DOUBLE_EQ(*dataset.files()[0].attended, 22.0 / 30.0);
  EXPECT_DOUBLE_EQ(dataset.attended(), 22.0 / 30.0);
  fill_up(batch, 3);
  EXPECT_EQ(batch.begins.size(), 15U);
  EXPECT_EQ(batch.begins.back(), 0);
}

TEST(DocumentsApart, AreNotMarkedWhereWindowsHaveOne) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abcd", "xy"});
  Dataset const dataset{{{path}}, held_apart(within_documents(3))};
  EXPECT_FALSE(dataset.marks_documents());
  EXPECT_TRUE(all_windows(dataset).begins.empty());
  EXPECT_FALSE(dataset.files()[0].attended);
  EXPECT_DOUBLE_EQ(dataset.attended(), 1.0);
}

TEST(DocumentsApart, MustBeToldApart) {
  TemporaryDirectory const folder;
  try {
    Dataset const dataset{{{folder.write("a.txt", "abcdefgh")}}, held_apart(options(3))};
    ADD_FAILURE();
  } catch (DataError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("data.attention=document must know"),
                                    HasSubstr("or data.attention=window")));
  }
}

/// A mask without checksums beside PREFIX.bin.
void write_mask(TemporaryDirectory const& folder, std::string const& prefix,
                std::string const& digits) {
  std::string bytes;
  for (char const digit : digits) {
    bytes += static_cast<char>(digit - '0');
  }
  auto const counted = static_cast<std::uint64_t>(std::ranges::count(digits, '1'));
  folder.write(prefix + ".mask",
               "OFFMASK1" + array_of<std::uint64_t>({digits.size(), counted, 0, 0}) + bytes);
}

TEST(Masks, IgnoreTargetsUnderEveryRule) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abcd", "xyz"});
  write_mask(folder, "a",
             "0011"
             "101");
  auto const crossing = all_windows(Dataset{{{path}}, options(3)});
  EXPECT_THAT(crossing.tokens, ElementsAre('a', 'b', 'c', 'd', 'x', 'y'));
  EXPECT_THAT(crossing.targets, ElementsAre(none, 'c', 'd', 'x', none, 'z'));
  auto const apart = all_windows(Dataset{{{path}}, within_documents(3)});
  EXPECT_THAT(apart.targets, ElementsAre(none, 'c', 'd', none, 'z', none));
  auto const whole = all_windows(Dataset{{{path}}, whole_documents(6)});
  EXPECT_THAT(whole.tokens, ElementsAre('a', 'b', 'c', 'd', 'x', 'y'));
  EXPECT_THAT(whole.targets, ElementsAre(none, 'c', 'd', none, none, 'z'));
  EXPECT_EQ(counted_targets(whole), 3);
  auto unmasked = options(3);
  unmasked.uses_masks = false;
  EXPECT_EQ(counted_targets(all_windows(Dataset{{{path}}, unmasked})), 6);
}

TEST(Masks, LeaveOutDocumentsWhoseCutTakesAllTargets) {
  TemporaryDirectory const folder;
  auto const path = write_documents(folder, "a", {"abcdefgh", "xyz"});
  write_mask(folder, "a",
             "10000001"
             "010");
  Dataset const dataset{{{path}}, whole_documents(3)};
  EXPECT_EQ(dataset.windows(), 1);
  EXPECT_EQ(dataset.files()[0].left_out, 1);
  EXPECT_EQ(dataset.files()[0].cut, 0);
  EXPECT_EQ(dataset.files()[0].counted, 3);
  write_mask(folder, "a",
             "10000001"
             "100");
  auto verified = whole_documents(3);
  verified.verifies_masks = true;
  Dataset const without{{{path}}, verified};  // a window without a target that counts
  EXPECT_EQ(counted_targets(all_windows(without)), 0);
}

}  // namespace
}  // namespace offstage::data
