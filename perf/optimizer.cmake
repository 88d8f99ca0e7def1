offstage_benchmark(NAME optimizer ROOMS base kernels memory LINK fmt::fmt)
