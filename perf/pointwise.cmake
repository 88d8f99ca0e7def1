offstage_benchmark(NAME pointwise ROOMS base device kernels LINK fmt::fmt)
