#include "platform/h5/reason.hpp"

#include <hdf5.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "base/printable.hpp"
#include "base/units.hpp"

namespace offstage::h5 {
namespace {

constexpr std::size_t longest_reason = 512;
constexpr auto spare_memory = static_cast<std::size_t>(32 * MiB);

/// The error that HDF5 met first, and whether memory had ended. Filled by a C library's loop:
/// nothing may be thrown.
struct Found {
  std::array<char, 2048> text{"HDF5 gives no reason"};
  bool no_memory = false;
};

/// The text behind the last `mark` in HDF5's description. Names of files stand before it.
std::string_view after(std::string_view mark, std::string_view text) {
  std::size_t const at = text.rfind(mark);
  return at == std::string_view::npos ? "" : text.substr(at + mark.size());
}

bool is_shortage(H5E_error2_t const& error) {
  return error.maj_num == H5E_RESOURCE || error.min_num == H5E_NOSPACE ||
         error.min_num == H5E_CANTALLOC;
}

}  // namespace

bool has_memory_to_spare() {
  void* const spare =
      mmap(nullptr, spare_memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return spare != MAP_FAILED && munmap(spare, spare_memory) == 0;
}

Reason innermost_reason() {
  Found found;
  auto const look_at = [](unsigned depth, H5E_error2_t const* error, void* out) -> herr_t {
    auto& kept = *static_cast<Found*>(out);
    if (depth == 0 && error->desc != nullptr) {
      kept.text.back() = '\0';
      std::strncpy(kept.text.data(), error->desc, kept.text.size() - 1);
    }
    kept.no_memory = kept.no_memory || is_shortage(*error);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, look_at, &found);
  H5Eclear2(H5E_DEFAULT);
  // A size in damaged metadata may be more than any memory.
  Reason reason{found.text.data(), found.no_memory && !has_memory_to_spare() ? ENOMEM : 0};
  std::string_view const number = after("errno = ", reason.text);
  std::from_chars(number.data(), number.data() + number.size(), reason.error_number);
  // The one system call whose errno HDF5 keeps to itself.
  if (reason.text == "can't retrieve stat info for file") {
    reason.error_number = EIO;
    reason.text = "HDF5 could not look at the file";
  }
  // The system's words alone are what the user needs of a failed system call.
  if (std::string_view const words = after("error message = '", reason.text); !words.empty()) {
    reason.text = std::string{words.substr(0, words.find('\''))};
  }
  reason.text = printable(reason.text, longest_reason);
  return reason;
}

}  // namespace offstage::h5
