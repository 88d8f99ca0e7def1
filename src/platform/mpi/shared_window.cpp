#include "platform/mpi/shared_window.hpp"
