offstage_benchmark(NAME gemm ROOMS base device kernels state model LINK fmt::fmt offstage_dnnl)
