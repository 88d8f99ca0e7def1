#include "platform/mpi/communicator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "platform/mpi/message.hpp"
#include "platform/mpi/session.hpp"

namespace offstage::mpi {
namespace {

/// What rank r holds at position i, in every test below.
std::uint8_t content(int rank, std::size_t i) {
  return static_cast<std::uint8_t>(rank * 31 + static_cast<int>(i % 97));
}

std::vector<std::uint8_t> contents(int rank, Bytes size) {
  std::vector<std::uint8_t> all(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = content(rank, i);
  }
  return all;
}

/// Parts of different lengths, the last rank's empty if there is more than one.
std::vector<Slice> uneven_parts(int ranks) {
  std::vector<Slice> parts;
  Bytes offset = 0;
  for (int r = 0; r < ranks; ++r) {
    Bytes const size = ranks > 1 && r == ranks - 1 ? 0 : 100 * (r + 1) + 7;
    parts.push_back({offset, size});
    offset += size;
  }
  return parts;
}

TEST(Communicator, BroadcastReachesEveryRankFromEveryRoot) {
  auto const comm = Communicator::world();
  for (int root = 0; root < comm.size(); ++root) {
    EXPECT_EQ(comm.broadcast_value(comm.rank() * 10, root), root * 10);
    EXPECT_EQ(comm.broadcast(std::string(static_cast<std::size_t>(comm.rank()), 'x'), root),
              std::string(static_cast<std::size_t>(root), 'x'));
  }
}

TEST(Communicator, AllGatherFillsTheOthersParts) {
  auto const comm = Communicator::world();
  auto const parts = uneven_parts(comm.size());
  std::vector<std::uint8_t> buffer(
      static_cast<std::size_t>(parts.back().offset + parts.back().size));
  auto const& mine = parts[static_cast<std::size_t>(comm.rank())];
  std::ranges::copy(contents(comm.rank(), mine.size), buffer.begin() + mine.offset);
  comm.all_gather(std::as_writable_bytes(std::span{buffer}), parts);
  std::vector<std::uint8_t> expected;
  for (int r = 0; r < comm.size(); ++r) {
    std::ranges::copy(contents(r, parts[static_cast<std::size_t>(r)].size),
                      std::back_inserter(expected));
  }
  EXPECT_EQ(buffer, expected);
}

TEST(Communicator, AllGatherOfEqualPartsFillsTheOthers) {
  auto const comm = Communicator::world();
  constexpr Bytes part = 131;
  std::vector<std::uint8_t> buffer(static_cast<std::size_t>(part * comm.size()));
  std::ranges::copy(contents(comm.rank(), part), buffer.begin() + part * comm.rank());
  comm.all_gather(std::as_writable_bytes(std::span{buffer}));
  std::vector<std::uint8_t> expected;
  for (int r = 0; r < comm.size(); ++r) {
    std::ranges::copy(contents(r, part), std::back_inserter(expected));
  }
  EXPECT_EQ(buffer, expected);
}

TEST(Communicator, AllGatherWantsOnePartPerRank) {
  auto const comm = Communicator::world();
  std::vector<Slice> const parts(static_cast<std::size_t>(comm.size() + 1));
  EXPECT_THROW(comm.all_gather({}, parts), PreconditionError);
}

TEST(Communicator, GatherCollectsAtTheRoot) {
  auto const comm = Communicator::world();
  int const root = comm.size() - 1;
  auto const parts = uneven_parts(comm.size());
  auto const mine = contents(comm.rank(), parts[static_cast<std::size_t>(comm.rank())].size);
  std::vector<std::uint8_t> buffer;
  if (comm.rank() == root) {
    buffer.resize(static_cast<std::size_t>(parts.back().offset + parts.back().size));
  }
  comm.gather(std::as_bytes(std::span{mine}), std::as_writable_bytes(std::span{buffer}), parts,
              root);
  if (comm.rank() != root) {
    return;
  }
  for (int r = 0; r < comm.size(); ++r) {
    auto const& part = parts[static_cast<std::size_t>(r)];
    auto const first = buffer.begin() + part.offset;
    EXPECT_EQ(std::vector<std::uint8_t>(first, first + part.size), contents(r, part.size));
  }
}

TEST(Communicator, ValuesComeInRankOrderAndReduce) {
  auto const comm = Communicator::world();
  std::vector<int> expected(static_cast<std::size_t>(comm.size()));
  std::iota(expected.begin(), expected.end(), 5);
  EXPECT_EQ(comm.all_gather_value(comm.rank() + 5), expected);
  std::int64_t const n = comm.size();
  EXPECT_EQ(comm.sum(std::int64_t{comm.rank()}), n * (n - 1) / 2);
  EXPECT_EQ(comm.maximum(std::int64_t{comm.rank()}), n - 1);
  EXPECT_EQ(comm.minimum(std::int64_t{comm.rank()} + 3), 3);
  EXPECT_EQ(comm.maximum(0.5 * comm.rank()), 0.5 * static_cast<double>(n - 1));
}

TEST(Message, TravelsWhileItsRankDoesSomethingElse) {
  auto const comm = Communicator::world().duplicate();
  std::array<std::byte, 3> const sent{std::byte{1}, std::byte{2},
                                      static_cast<std::byte>(comm.rank())};
  std::array<std::byte, 100> received{};
  Message receive = Message::receive(comm, received);
  EXPECT_TRUE(receive.is_under_way());
  EXPECT_FALSE(Message{}.is_under_way());
  comm.barrier();
  Message send = Message::send(comm, sent, (comm.rank() + 1) % comm.size());
  for (bool all = false; !all;) {
    all = true;
    for (Message* const message : {&receive, &send}) {
      all = (!message->is_under_way() || message->has_ended()) && all;
    }
  }
  EXPECT_FALSE(receive.is_under_way());
  EXPECT_EQ(receive.received(), 3) << "less than it could take";
  EXPECT_EQ(received[0], std::byte{1});
  EXPECT_EQ(received[2], static_cast<std::byte>((comm.rank() + comm.size() - 1) % comm.size()));
}

TEST(Communicator, RanksOfOneMachineShareANode) {
  auto const comm = Communicator::world();
  auto node = comm.split_by_node();
  EXPECT_EQ(node.size(), comm.size());
  Communicator const moved{std::move(node)};
  EXPECT_EQ(moved.broadcast_value(7, 0), 7);
}

TEST(Agree, SilenceMeansThatNobodyFailed) {
  EXPECT_NO_THROW(agree(Communicator::world(), [] {}));
}

TEST(Agree, AllRanksThrowTheErrorOfTheLowestThatFailed) {
  auto const comm = Communicator::world();
  int const lowest = comm.size() / 2;
  try {
    agree(comm, [&] {
      if (comm.rank() == lowest) {
        throw DataError{"rank " + std::to_string(lowest) + " is sad"};
      }
      if (comm.rank() > lowest) {
        throw IoError{"a later one"};
      }
    });
    FAIL() << "must throw on every rank";
  } catch (AgreedError const& error) {
    EXPECT_EQ(error.failed_rank(), lowest);
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(std::string{error.what()}, "rank " + std::to_string(lowest) + " is sad");
  }
}

TEST(Agree, AnErrorHasAnErrnoUnlessThatOfAnyRankHasNone) {
  auto const comm = Communicator::world();
  for (bool const last_is_final : {false, true}) {
    try {
      agree(comm, [&] {
        if (last_is_final && comm.rank() == comm.size() - 1) {
          throw IoError{"for good"};
        }
        throw IoError{"for a moment", EIO};
      });
      FAIL();
    } catch (AgreedError const& error) {
      EXPECT_EQ(error.error_number(), last_is_final ? 0 : EIO);
    }
  }
}

TEST(Agree, AStrangersExceptionIsAnInternalError) {
  auto const comm = Communicator::world();
  try {
    agree(comm, [&] {
      if (comm.rank() == 0) {
        throw std::runtime_error{"unexpected"};
      }
    });
    FAIL();
  } catch (AgreedError const& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
  }
}

TEST(Agree, WhatTheSystemRefusesIsAnIoError) {
  auto const comm = Communicator::world();
  try {
    agree(comm, [&] {
      if (comm.rank() == 0) {
        (void)std::filesystem::file_size("/nowhere/at/all");
      }
    });
    FAIL();
  } catch (AgreedError const& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_THAT(error.what(), testing::HasSubstr("/nowhere/at/all"));
  }
}

TEST(Session, NamesTheLibrary) {
  EXPECT_STRNE(library_version(), "");
}

TEST(Session, TakesDeviceMemoryOnlyIfItWasBuiltTo) {
  EXPECT_TRUE(is_built_for_device_memory() || !takes_device_memory());
}

/// What a command writes; empty if there is none of that name.
std::string output_of(char const* command) {
  std::string text;
  if (FILE* const pipe = popen(command, "r"); pipe != nullptr) {
    std::array<char, 256> part{};
    while (std::fgets(part.data(), part.size(), pipe) != nullptr) {
      text += part.data();
    }
    pclose(pipe);
  }
  return text;
}

TEST(Session, KnowsOfOpenMpiWhatOmpiInfoSays) {
  if (!std::string{library_version()}.starts_with("Open MPI")) {
    EXPECT_FALSE(built_for_device_memory().value_or(false)) << "only Open MPI is known to say";
    return;
  }
  ASSERT_TRUE(built_for_device_memory().has_value());
  std::string const told =
      output_of("ompi_info --parsable --all 2>/dev/null | grep mpi_built_with_cuda_support:value:");
  if (!told.empty()) {
    EXPECT_EQ(*built_for_device_memory(), told.find(":true") != std::string::npos) << told;
  }
}

TEST(MpiError, NamesTheCall) {
  EXPECT_THAT((MpiError{"MPI_Bcast", MPI_ERR_COUNT}.what()),
              testing::HasSubstr("MPI_Bcast failed: "));
}

}  // namespace
}  // namespace offstage::mpi
