if(OFFSTAGE_HAVE_CUDA)
  offstage_benchmark(NAME attention ROOMS base device cuda kernels LINK fmt::fmt)
endif()
