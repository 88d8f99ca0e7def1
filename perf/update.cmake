offstage_benchmark(NAME update ROOMS base aio memory kernels state tiers update LINK fmt::fmt)
