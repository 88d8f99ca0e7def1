offstage_benchmark(NAME model ROOMS base data device kernels model state LINK fmt::fmt)
