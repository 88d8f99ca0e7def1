offstage_benchmark(NAME overlap ROOMS base cli device kernels memory mpi plan state tiers train update LINK fmt::fmt)
