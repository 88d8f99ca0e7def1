#include <fcntl.h>

#include <csignal>
#include <limits>

#include "base/cgroup.hpp"
#include "base/team.hpp"
#include "cli/commands.hpp"
#include "launch/placement.hpp"
#include "platform/aio/open_files.hpp"
#include "platform/cpu/waiting.hpp"
#include "platform/cuda/gpus.hpp"

namespace {

/// Opens standard streams that are closed. Otherwise the program's first files would get their
/// numbers, and log lines would go to these files.
void occupy_standard_streams() {
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= 2) {
    descriptor = ::open("/dev/null", O_RDWR);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A write beyond `ulimit -f` then fails with EFBIG, and the error names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  // Data files stay open, and there may be thousands; a usual soft limit is 1024. Without a bound
  // it could become a billion, and programs that are called close so many, one after another.
  offstage::aio::allow_open_files(65'536);
  offstage::cpu::let_idle_threads_sleep(argv);
  auto const quota = offstage::cpu_quota();
  offstage::limit_team_size(quota ? offstage::launch::threads_within(*quota, 1)
                                  : std::numeric_limits<int>::max());
  offstage::cuda::ask_for_work_queues();
  occupy_standard_streams();
  offstage::cli::Arguments const arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return static_cast<int>(offstage::cli::run(arguments));
}
