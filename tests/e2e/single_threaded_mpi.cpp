// Preloaded: an MPI that was built without threads.
#include <mpi.h>

extern "C" int MPI_Init_thread(int* count, char*** arguments, int wanted, int* provided) {
  int const code = PMPI_Init_thread(count, arguments, wanted, provided);
  *provided = MPI_THREAD_SINGLE;
  return code;
}
