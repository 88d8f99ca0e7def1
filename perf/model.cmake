offstage_benchmark(NAME model ROOMS base cudnn data device kernels model state LINK fmt::fmt)
