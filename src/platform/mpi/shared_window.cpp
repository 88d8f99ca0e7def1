#include "platform/mpi/shared_window.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::mpi {
namespace {

constexpr std::size_t alignment = 64;  // a cache line

}  // namespace

SharedWindow::SharedWindow(Communicator const& node, Bytes size)
    : exceptions_{std::uncaught_exceptions()} {
  require(size >= 0, "SharedWindow: negative size");
  Waiting const waiting{"the making of a shared window"};
  // All of it is the first rank's: with parts, MPI may pad between them.
  bool const first = node.rank() == 0;
  auto const mine = first ? static_cast<MPI_Aint>(size) + static_cast<MPI_Aint>(alignment) : 0;
  void* own{};
  check(MPI_Win_allocate_shared(mine, 1, MPI_INFO_NULL, node.get(), static_cast<void*>(&own),
                                &window_),
        "MPI_Win_allocate_shared");
  MPI_Aint found{};
  int unit{};
  void* begin{};
  check(MPI_Win_shared_query(window_, 0, &found, &unit, static_cast<void*>(&begin)),
        "MPI_Win_shared_query");
  // Processes map whole pages, so the same bytes are skipped in each.
  auto space = static_cast<std::size_t>(found);
  auto const wanted = static_cast<std::size_t>(size);
  begin = std::align(alignment, wanted, begin, space);
  require(begin != nullptr, "SharedWindow: MPI gave less than was asked for");
  bytes_ = {static_cast<std::byte*>(begin), wanted};
  if (first) {
    std::ranges::fill(bytes_, std::byte{0});
  }
  node.barrier();
}

SharedWindow::~SharedWindow() {
  int finalized{};
  MPI_Finalized(&finalized);
  if (finalized == 0 && std::uncaught_exceptions() == exceptions_) {
    MPI_Win_free(&window_);
  }
}

}  // namespace offstage::mpi
