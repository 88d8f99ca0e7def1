// main() of tests that run under mpirun: MPI is up during all tests, and a rank that fails makes
// the job fail.
#include <gtest/gtest.h>

#include "platform/mpi/session.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  offstage::mpi::Session const session;
  return RUN_ALL_TESTS();
}
