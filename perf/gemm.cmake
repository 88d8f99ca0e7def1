offstage_benchmark(NAME gemm ROOMS base device kernels state model LINK fmt::fmt offstage_dnnl)
target_include_directories(perf_gemm PRIVATE ${PROJECT_SOURCE_DIR}/tests)
