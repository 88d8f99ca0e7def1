#include "base/failure.hpp"

#include <filesystem>
#include <new>
#include <system_error>

namespace offstage {

Failure failure_of(std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (IoError const& io) {
    return {io.code(), io.what(), io.error_number()};
  } catch (Error const& known) {
    return {known.code(), known.what()};
  } catch (std::bad_alloc const&) {
    return {ExitCode::other,
            "out of memory; a run takes less with a smaller model or batch, or state on storage"};
  } catch (std::filesystem::filesystem_error const& io) {
    return {ExitCode::io, io.what()};
  } catch (std::system_error const& refused) {
    return {ExitCode::io, std::string{"the operating system refused: "} + refused.what()};
  } catch (std::exception const& unknown) {
    return {ExitCode::internal, std::string{"internal error: "} + unknown.what()};
  } catch (...) {
    return {ExitCode::internal, "internal error of no known kind"};
  }
}

}  // namespace offstage
