# What sites install Offstage by: a Debian package (cpack), a module file and an Apptainer definition. README.md says how.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME offstage)
set(CPACK_PACKAGE_CONTACT "The Offstage developers <offstage@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME offstage_${PROJECT_VERSION}_amd64.deb)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# What is packed is what was built: not tests and benchmarks for the package's sake.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
# Libraries by dpkg-shlibdeps; mpirun comes with openmpi-bin.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "hdf5-tools, bash-completion, slurm-client")
include(CPack)

configure_file(${CMAKE_CURRENT_LIST_DIR}/modulefile.in ${PROJECT_BINARY_DIR}/packages/modulefile @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/packages/modulefile
  DESTINATION ${CMAKE_INSTALL_DATADIR}/offstage/modulefiles/offstage RENAME ${PROJECT_VERSION})
configure_file(${CMAKE_CURRENT_LIST_DIR}/offstage.def.in ${PROJECT_BINARY_DIR}/packages/offstage.def @ONLY)
