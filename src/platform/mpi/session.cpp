#include "platform/mpi/session.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <sys/uio.h>
#include <unistd.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/watch.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::mpi {
namespace {

constexpr std::chrono::seconds abort_grace{5};

/// A control variable of MPI's tools interface that is a flag; null: none of that name can be read.
std::optional<bool> read_flag(char const* name) noexcept {
  int index{};
  int count{};
  MPI_T_cvar_handle handle{};
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) {
    return std::nullopt;
  }
  std::array<unsigned char, 64> value{};  // a bool today
  std::optional<bool> flag;
  if (count == 1 && MPI_T_cvar_read(handle, value.data()) == MPI_SUCCESS) {
    flag = std::ranges::any_of(value, [](unsigned char byte) { return byte != 0; });
  }
  MPI_T_cvar_handle_free(&handle);
  return flag;
}

/// Open MPI starts a daemon beside a process without launcher, for processes that it might spawn,
/// and looks through its networks; one rank needs neither. Without the daemon all such processes of
/// a user share one session directory: one that ends removes what another is about to use, which
/// then does not start. One rank puts nothing there. Variables that the user set stay.
void expect_one_rank() noexcept {
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
  setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
  bool const chosen = std::getenv("OMPI_MCA_btl") != nullptr ||
                      std::getenv("OMPI_MCA_mtl") != nullptr ||
                      std::getenv("OMPI_MCA_pml") != nullptr;
  if (!chosen) {
    setenv("OMPI_MCA_pml", "ob1", 1);
    setenv("OMPI_MCA_btl", "self", 1);
  }
}

std::string_view value_of(char const* name) noexcept {
  char const* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Whether the name of a variable begins so.
bool has_variable(std::string_view family) noexcept {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view{*variable}.starts_with(family)) {
      return true;
    }
  }
  return false;
}

/// Returns true if Slurm started this process alone, or the shell in which it runs, and no launcher
/// below did.
bool is_only_task_of_step() noexcept {
  constexpr std::array<std::string_view, 4> of_others{"OMPI_COMM_WORLD_", "OMPI_MCA_ess", "PALS_",
                                                      "ALPS_"};
  auto const space = value_of("PMIX_NAMESPACE");
  auto const size = value_of("PMI_SIZE");
  return value_of("SLURM_STEP_NUM_TASKS") == "1" &&
         (space.empty() || space.starts_with("slurm.pmix.")) && (size.empty() || size == "1") &&
         std::ranges::none_of(of_others, has_variable);
}

/// Returns whether the system lets a process read the memory of one, be it its own. Sandboxes of
/// containers may refuse it.
bool reads_processes() noexcept {
  char from = 1, to = 0;
  iovec const source{&from, 1}, target{&to, 1};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1;
}

/// Chooses components of Open MPI. Ranks of a node read large messages out of each other's memory;
/// where that is refused, Open MPI 4 would say so for each message. Windows are those of shared
/// memory alone: a site's osc=ucx, for one-sided messages, makes none. The collectives by levels
/// (`han`, the first choice of Open MPI 5) took up to four times as long for an all-gather over two
/// nodes as `tuned`, and one and a half times its size in memory of each node's first rank. Whoever
/// sets its priority keeps it.
void choose_components() noexcept {
  setenv("OMPI_MCA_osc", "sm", 1);
  setenv("OMPI_MCA_coll_han_priority", "0", 0);
  if (!reads_processes()) {
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
  }
}

/// Removes the variables by which MPI would take this process for a task of a step. Slurm's PMIx
/// takes one process of a task, so that a shell's second command would not start. Without Slurm's
/// PMIx, Open MPI would start no task.
void leave_step() {
  std::vector<std::string> names{"SLURM_STEP_ID"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    std::string_view const text{*variable};
    if (text.starts_with("PMI")) {
      names.emplace_back(text.substr(0, text.find('=')));
    }
  }
  for (std::string const& name : names) {
    unsetenv(name.c_str());
  }
}

char const* name_of_level(int level) noexcept {
  return level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "a level below MPI_THREAD_FUNNELED";
}

}  // namespace

bool has_launcher() noexcept {
  // Sites set parameters of PMIx (PMIX_MCA_...) for good.
  constexpr std::array<std::string_view, 8> families{
      "PMI_RANK",         "PMI_FD",       "PMIX_RANK", "PMIX_NAMESPACE",
      "OMPI_COMM_WORLD_", "OMPI_MCA_ess", "PALS_",     "ALPS_"};
  return !is_only_task_of_step() && std::ranges::any_of(families, has_variable);
}

Session::Session() {
  if (!has_launcher()) {
    if (is_only_task_of_step()) {
      leave_step();
    }
    expect_one_rank();
  }
  choose_components();
  Waiting const waiting{"the start of MPI"};
  int provided{};
  int const code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) {
    throw MpiError{"MPI_Init_thread", code};
  }
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw Error{
        ExitCode::other,
        fmt::format(
            "MPI_Init_thread: {} gives a process {} alone, but offstage has threads beside the one "
            "that calls MPI and needs MPI_THREAD_FUNNELED; use an MPI that was built with threads",
            library_version(), name_of_level(provided))};
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF,
                          MPI_ERRORS_RETURN);  // calls without a communicator, from MPI 4 on
}

Session::~Session() {
  Waiting const waiting{"the end of MPI"};
  MPI_Finalize();
}

void abort_job(int exit_code) noexcept {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

void abort_stuck_job(int exit_code) noexcept {
  int up = 0;
  if (MPI_Initialized(&up); up == 0) {  // may be asked at any time, by any thread
    std::_Exit(exit_code);
  }
  // MPI_THREAD_FUNNELED makes no promise for another thread. Open MPI hands the abort to a progress
  // thread of its own and takes no lock of the library; where that fails, the exit below remains.
  try {
    std::thread{[exit_code] { MPI_Abort(MPI_COMM_WORLD, exit_code); }}.detach();
    std::this_thread::sleep_for(abort_grace);
  } catch (...) {  // no thread is to be had
  }
  std::_Exit(exit_code);
}

char const* library_version() noexcept {
  static std::string const version = [] {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length{};
    MPI_Get_library_version(text.data(), &length);
    std::string const whole{text.data(), static_cast<std::size_t>(length)};
    return whole.substr(0, whole.find_first_of(",\n"));
  }();
  return version.c_str();
}

// The macro is there wherever the function is, and says only how the library was built that this
// was compiled with.
bool takes_device_memory() noexcept {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

// MPI_T may be called before MPI_Init (MPI 4.1, section 15.3), MPIX_Query_cuda_support may not (its
// manual page).
std::optional<bool> built_for_device_memory() noexcept {
  static auto const is_built = []() -> std::optional<bool> {
    int provided{};
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) {
      return std::nullopt;
    }
    auto const flag = read_flag("mpi_built_with_cuda_support");  // as ompi_info shows it
    MPI_T_finalize();
    return flag;
  }();
  return is_built;
}

}  // namespace offstage::mpi
