offstage_benchmark(NAME launch ROOMS base cli device kernels memory mpi plan state tiers train update LINK fmt::fmt)
