offstage_benchmark(NAME adamw ROOMS base kernels memory LINK fmt::fmt)
