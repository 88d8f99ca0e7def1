offstage_benchmark(NAME model ROOMS base cudnn data device kernels model probe state LINK fmt::fmt)
