offstage_benchmark(NAME share ROOMS base cli device kernels memory mpi plan probe state tiers train update LINK fmt::fmt)
