offstage_benchmark(NAME ablation ROOMS base cli device kernels memory mpi state tiers train update LINK fmt::fmt)
