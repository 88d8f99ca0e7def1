#include "platform/cuda/blas_lt_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "platform/cuda/check.hpp"

namespace offstage::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(std::string const& file) {
  try {
    static_cast<void>(load_blas_lt(file));
    return "none";
  } catch (CudaError const& error) {
    return error.what();
  }
}

TEST(BlasLtLibrary, HasEveryFunctionInTheToolkitThatIsInstalledHere) {
  EXPECT_STREQ(load_blas_lt().get_status_name(CUBLAS_STATUS_SUCCESS), "CUBLAS_STATUS_SUCCESS");
}

TEST(BlasLtLibrary, NamesTheFileThatIsNotThereAndWhatToDo) {
  EXPECT_THAT(error_of("/nowhere/libcublasLt.so.1"),
              AllOf(HasSubstr("/nowhere/libcublasLt.so.1: cannot open"),
                    HasSubstr("install cuBLAS " + std::to_string(CUBLAS_VER_MAJOR)),
                    HasSubstr("LD_LIBRARY_PATH")));
}

TEST(BlasLtLibrary, NamesTheFunctionThatALibraryLacks) {
  EXPECT_THAT(error_of("libc.so.6"), HasSubstr("libc.so.6 has no cublasLt"));
}

}  // namespace
}  // namespace offstage::cuda
