#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "base/random.hpp"
#include "temporary_directory.hpp"
#include "train/run/open_data.hpp"

namespace offstage::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

data::DatasetOptions by_separator(data::WindowRule rule) {
  return {.key = "data.train",
          .format = data::Format::text,
          .vocab = 128,
          .sequence = 5,
          .rule = rule,
          .documents_apart = true,
          .separator = '|'};
}

/// A text of documents of which some are empty, and which may end with a separator or without.
std::string text(std::size_t size, std::uint64_t seed) {
  std::string result(size, 'x');
  for (std::size_t i = 0; i < size; ++i) {
    result[i] = philox(seed, 0, i)[0] % 4 == 0 ? '|' : static_cast<char>('a' + i % 20);
  }
  return result;
}

/// A file that counts the tokens that are read of it.
class CountedFile final : public data::TokenFile {
 public:
  CountedFile(std::string const& path, std::int64_t& count)
      : file_{data::open_tokens({.path = path, .key = "data.train", .vocab = 128})},
        count_{count} {}
  std::string const& path() const override { return file_->path(); }
  data::Format format() const override { return file_->format(); }
  data::TokenType type() const override { return file_->type(); }
  std::int64_t tokens() const override { return file_->tokens(); }
  std::optional<std::vector<std::int64_t>> documents() const override { return std::nullopt; }
  std::optional<std::int64_t> document_count() const override { return std::nullopt; }
  std::string doubt() const override { return {}; }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    count_ += std::ssize(out);
    file_->read(first, out);
  }

 private:
  std::unique_ptr<data::TokenFile> file_;
  std::int64_t& count_;
};

TEST(SharedScan, FindsWhatOneRankFindsAndReadsEachTokenOnce) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  std::int64_t read = 0;
  std::vector<CountedFile> files;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    std::size_t const size = std::vector<std::size_t>{300'000, 1, 2, 70'001, 13}[i];
    tokens += static_cast<std::int64_t>(size);
    files.emplace_back(folder.write(fmt::format("{}.txt", i), text(size, i)), read);
  }
  std::vector<data::TokenFile const*> pointers;
  std::vector<std::vector<std::int64_t>> expected;
  for (CountedFile const& file : files) {
    pointers.push_back(&file);
    expected.push_back(data::documents_by_separator(file, '|'));
  }
  read = 0;
  EXPECT_EQ(shared_scan(pointers, '|', comm), expected);
  EXPECT_EQ(comm.sum(read), tokens);
  EXPECT_LE(read, tokens / comm.size() + comm.size());
}

TEST(SharedScan, OfCopiesWithOtherSizesIsEachRanksOwn) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  auto const mine = comm.rank() == 0 ? folder.write("a.txt", "a|b|c") : folder.write("a.txt", "|b");
  std::int64_t read = 0;
  CountedFile const file{mine, read};
  std::vector<data::TokenFile const*> const files{&file};
  auto const documents = shared_scan(files, '|', comm);
  if (comm.rank() == 0) {
    EXPECT_THAT(documents, ElementsAre(ElementsAre(0, 2, 4)));
  } else {
    EXPECT_THAT(documents, ElementsAre(ElementsAre(0, 1)));
  }
}

TEST(OpenedData, IsThatOfOneRank) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  std::vector<data::Source> const sources{{folder.write("a.txt", text(500, 1))},
                                          {folder.write("b.txt", text(90, 2))}};
  for (auto const rule :
       {data::WindowRule::apart, data::WindowRule::whole, data::WindowRule::crossing}) {
    for (double const part : {0.0, 0.3}) {
      auto options = by_separator(rule);
      options.held_out = {.part = part, .is_taken = part > 0.0};
      auto const dataset = open_data(sources, options, comm);
      data::Dataset const alone{sources, options};
      ASSERT_EQ(dataset->windows(), alone.windows());
      for (std::int64_t window = 0; window < alone.windows(); ++window) {
        auto const one = std::span{&window, 1};
        EXPECT_EQ(dataset->batch(one).targets, alone.batch(one).targets);
        EXPECT_EQ(dataset->batch(one).begins, alone.batch(one).begins);
      }
    }
  }
}

TEST(OpenedData, WithABadTokenInOneRanksPartEndsAll) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  auto content = text(500, 1);
  content[490] = '\xff';
  auto const path = folder.write("a.txt", content);
  try {
    (void)open_data({{path}}, by_separator(data::WindowRule::apart), comm);
    ADD_FAILURE() << "accepted";
  } catch (mpi::AgreedError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("data.train="), HasSubstr("a.txt")));
  }
}

TEST(OpenedData, ThatOneRankCannotOpenEndsAll) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  bool const is_last = comm.rank() + 1 == comm.size();
  auto const path =
      is_last ? (folder.path() / "none.txt").string() : folder.write("a.txt", text(500, 1));
  try {
    (void)open_data({{path}}, by_separator(data::WindowRule::apart), comm);
    ADD_FAILURE() << "accepted";
  } catch (mpi::AgreedError const& error) {
    EXPECT_EQ(error.failed_rank(), comm.size() - 1);
    EXPECT_EQ(error.code(), comm.size() == 1 ? ExitCode::data : ExitCode::io);
    EXPECT_FALSE(error.host().empty());
    EXPECT_THAT(error.what(), HasSubstr("none.txt"));
  }
}

}  // namespace
}  // namespace offstage::train
