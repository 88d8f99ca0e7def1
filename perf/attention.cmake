if(OFFSTAGE_HAVE_CUDA)
  offstage_benchmark(NAME attention ROOMS base device cuda cudnn kernels LINK fmt::fmt)
endif()
