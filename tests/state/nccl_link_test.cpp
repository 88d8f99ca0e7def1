#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/device.hpp"
#include "platform/nccl/library.hpp"
#include "state/rank_link.hpp"
#include "state/working_copy.hpp"

namespace offstage::state {
namespace {

using testing::HasSubstr;

/// What rank `from` has for rank `to` at this place: unlike all others.
std::byte value_of(int from, int to, std::size_t i) {
  return static_cast<std::byte>(from * 61 + to * 17 + static_cast<int>(i % 13));
}

/// A device, and a link of NCCL's between all ranks.
class NcclLink : public testing::Test {
 protected:
  NcclLink() { link = make_nccl_link(comm, nccl::load_library(OFFSTAGE_NCCL_STAND_IN), *stream); }

  /// Parts of `part` bytes.
  void gather(std::size_t part, device::Stream& on) {
    auto const at = [&](int rank) { return static_cast<std::size_t>(rank) * part; };
    std::size_t const size = at(comm.size());
    device::Buffer const buffer = device->allocate(static_cast<Bytes>(size), "parts");
    std::vector<std::byte> host(size);
    for (std::size_t i = 0; i < part; ++i) {
      host[at(comm.rank()) + i] = value_of(comm.rank(), 0, i);
    }
    auto* const there = buffer.as<std::byte>().data();
    on.copy(there, host.data(), std::ssize(host), device::Copy::host_to_device);
    link->all_gather(on, buffer.as<std::byte>());
    on.copy(host.data(), there, std::ssize(host), device::Copy::device_to_host);
    on.synchronize();
    for (int rank = 0; rank < comm.size(); ++rank) {
      for (std::size_t i = 0; i < part; ++i) {
        ASSERT_EQ(host[at(rank) + i], value_of(rank, 0, i));
      }
    }
  }

  mpi::Communicator comm = mpi::Communicator::world();
  std::unique_ptr<device::Device> device = device::make_cuda_device(0, 0);
  std::unique_ptr<device::Stream> stream = device->make_stream("ranks");
  std::unique_ptr<RankLink> link;
};

TEST_F(NcclLink, TakesDeviceMemory) {
  EXPECT_EQ(link->route(), Route::direct);
}

TEST_F(NcclLink, GathersPartsOfAnySize) {
  for (std::size_t const part : {4096, 1, 300'001}) {
    gather(part, *stream);
  }
}

// Each rank has for rank r 1000 (r + 1) bytes, but the last one, as an idle rank, has none.
TEST_F(NcclLink, SendsToEachRankItsOwn) {
  int const active = std::max(1, comm.size() - 1);
  std::vector<Slice> send_parts(static_cast<std::size_t>(comm.size()));
  std::vector<Slice> receive_parts(send_parts.size());
  std::vector<std::byte> send;
  Bytes received = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    auto const at = static_cast<std::size_t>(rank);
    if (comm.rank() < active) {
      send_parts[at] = {std::ssize(send), 1000 * (rank + 1)};
      for (std::size_t i = 0; i < static_cast<std::size_t>(send_parts[at].size); ++i) {
        send.push_back(value_of(comm.rank(), rank, i));
      }
    }
    if (rank < active) {
      receive_parts[at] = {received, 1000 * (comm.rank() + 1)};
      received += receive_parts[at].size;
    }
  }
  device::Buffer const out = device->allocate(std::ssize(send), "to send");
  device::Buffer const in = device->allocate(received, "to receive");
  std::vector<std::byte> host(static_cast<std::size_t>(received));
  stream->copy(out.as<std::byte>().data(), send.data(), std::ssize(send),
               device::Copy::host_to_device);
  link->all_to_all(*stream, out.as<std::byte>(), send_parts, in.as<std::byte>(), receive_parts);
  stream->copy(host.data(), in.as<std::byte>().data(), received, device::Copy::device_to_host);
  stream->synchronize();
  for (int rank = 0; rank < active; ++rank) {
    Slice const& part = receive_parts[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < static_cast<std::size_t>(part.size); ++i) {
      ASSERT_EQ(host[static_cast<std::size_t>(part.offset) + i], value_of(rank, comm.rank(), i));
    }
  }
}

// Ranks whose streams run in another order would each wait for what the other has not begun.
TEST_F(NcclLink, KeepsItsOrderOverSeveralStreams) {
  constexpr Bytes part = 50'000;
  constexpr int rounds = 20;
  auto const other = device->make_stream("gradients");
  std::array const streams{stream.get(), other.get()};
  auto const whole = static_cast<std::size_t>(part * comm.size());
  auto const sent = [](int rank, std::size_t gather) {
    return static_cast<std::byte>(1 + rank * 2 * rounds + static_cast<int>(gather));
  };
  std::vector<device::Buffer> buffers;  // of both streams in turn, round by round
  for (std::size_t i = 0; i < std::size_t{2 * rounds}; ++i) {
    buffers.push_back(device->allocate(part * comm.size(), "what is gathered"));
    std::vector<std::byte> own(whole);
    std::ranges::fill(std::span{own}.subspan(static_cast<std::size_t>(part * comm.rank()),
                                             static_cast<std::size_t>(part)),
                      sent(comm.rank(), i));
    stream->copy(buffers[i].as<std::byte>().data(), own.data(), std::ssize(own),
                 device::Copy::host_to_device);
  }
  stream->synchronize();
  // On every other rank the stream that comes first is late.
  device::Buffer const large = device->allocate(32 * MiB, "a copy that takes its time");
  auto const half = large.as<std::byte>().subspan(std::size_t{16 * MiB});
  streams[static_cast<std::size_t>(comm.rank() % 2)]->copy(
      large.as<std::byte>().data(), half.data(), std::ssize(half), device::Copy::device_to_device);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    link->all_gather(*streams[i % 2], buffers[i].as<std::byte>());
  }
  stream->synchronize();
  other->synchronize();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    std::vector<std::byte> host(whole);
    stream->copy(host.data(), buffers[i].as<std::byte>().data(), std::ssize(host),
                 device::Copy::device_to_host);
    stream->synchronize();
    for (int rank = 0; rank < comm.size(); ++rank) {
      auto const gathered = std::span{host}.subspan(static_cast<std::size_t>(part * rank),
                                                    static_cast<std::size_t>(part));
      EXPECT_EQ(std::ranges::count(gathered, sent(rank, i)), part)
          << "gather " << i << ", rank " << rank;
    }
  }
}

TEST_F(NcclLink, GathersTheWorkingCopyOfAGpu) {
  std::vector<LayerLayout> layers;
  for (std::int64_t const elements : {5 * 4096, 10, 7 * 4096 - 3}) {
    layers.emplace_back().elements = elements;
  }
  ShardMap const map{layers, comm.size()};
  auto const model = device->make_calling_stream("compute");
  if (comm.size() == 1) {
    return;  // a link between one rank and itself carries nothing
  }
  WorkingCopy<bfloat16> copy{map, *link, *device, *model};
  auto const value = [](int layer, std::int64_t i) {
    return to_bf16(static_cast<float>(layer * 100 + i % 97));
  };
  for (int layer = 0; layer < 3; ++layer) {
    ChunkRange const mine = map.chunks(layer, comm.rank());
    std::vector<bfloat16> values;
    for (std::int64_t i = 0; i < mine.count * chunk_elements; ++i) {
      values.push_back(value(layer, mine.first * chunk_elements + i));
    }
    copy.write(map.shard_offset(layer, comm.rank()), values);
  }
  for (int const layer : {0, 1, 2, 1, 0}) {
    auto const whole = copy.acquire(layer);
    std::vector<bfloat16> values(whole.size());
    model->copy(values.data(), whole.data(), static_cast<Bytes>(whole.size_bytes()),
                device::Copy::device_to_host);
    model->synchronize();
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], value(layer, static_cast<std::int64_t>(i)));
    }
    copy.release(layer, model->record());
  }
}

// A rank that fails unwinds: its streams must end although the others never come.
TEST_F(NcclLink, AfterAnErrorWaitsForNoOtherRank) {
  device::Buffer const buffer = device->allocate(comm.size() * Bytes{MiB}, "parts");
  struct Run {
    explicit Run(RankLink& of) : link{of} {}
    Run(Run const&) = delete;
    Run& operator=(Run const&) = delete;
    ~Run() { link.end(); }
    RankLink& link;
  };
  auto const fail = [&] {
    Run const run{*link};
    if (comm.rank() == 0) {
      link->all_gather(*stream, buffer.as<std::byte>());
    }
    throw IoError{"a disk is gone"};
  };
  EXPECT_THROW(fail(), IoError);
  stream->synchronize();
  EXPECT_THROW(link->all_gather(*stream, buffer.as<std::byte>()), PreconditionError);
  comm.barrier();
}

TEST_F(NcclLink, TellsOfWhatWentWrongInTheBackground) {
  device::Buffer const buffer = device->allocate(comm.size(), "parts");
  ::setenv("NCCL_ON_CPU_FAULT", "1", 1);
  try {
    link->all_gather(*stream, buffer.as<std::byte>());
    ADD_FAILURE() << "nothing was said";
  } catch (nccl::NcclError const& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("network"), HasSubstr("NCCL_DEBUG")));
  }
  ::unsetenv("NCCL_ON_CPU_FAULT");
}

std::string error_of(std::string const& file) {
  try {
    static_cast<void>(nccl::load_library(file));
  } catch (nccl::NcclError const& error) {
    return error.what();
  }
  return "none";
}

TEST(NcclLibrary, SaysWhatIsMissing) {
  EXPECT_THAT(error_of("/nowhere/libnccl.so.2"), HasSubstr("/nowhere/libnccl.so.2"));
  EXPECT_THAT(error_of("libm.so.6"), HasSubstr("ncclGetVersion"));
  EXPECT_THAT(nccl::load_library(OFFSTAGE_NCCL_STAND_IN)->version(), testing::StartsWith("2."));
}

}  // namespace
}  // namespace offstage::state
