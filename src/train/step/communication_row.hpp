#pragma once

#include <chrono>
#include <string>

#include "base/watch.hpp"
#include "platform/trace/trace.hpp"

namespace offstage::train {

/// A trace's row "communication": the waits in MPI of the thread that made this object, while it
/// lives.
class CommunicationRow final : public RankWaits {
 public:
  explicit CommunicationRow(trace::Trace& trace) : trace_{trace} { tell_of_rank_waits(this); }
  ~CommunicationRow() override { tell_of_rank_waits(nullptr); }
  CommunicationRow(CommunicationRow const&) = delete;
  CommunicationRow& operator=(CommunicationRow const&) = delete;

  void waited(std::string const& what, std::chrono::steady_clock::time_point begin,
              std::chrono::steady_clock::time_point end) noexcept override {
    trace_.span("communication", what, begin, end);
  }

 private:
  trace::Trace& trace_;
};

}  // namespace offstage::train
