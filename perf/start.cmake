offstage_benchmark(NAME start ROOMS base memory LINK fmt::fmt)
