# What `cmake --install` puts where: the library's headers and archives, the package files, tq.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(tq_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/TurboQuant)
install(DIRECTORY turboquant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE PATTERN "*_kernels.h" EXCLUDE
        PATTERN "cublaslt.h" EXCLUDE PATTERN "*test_util.h" EXCLUDE PATTERN "*_for_test.h" EXCLUDE)

set(tq_installed)
foreach(folder base codec cache attention linear calibrate plan)
  if(TARGET tq_${folder})
    set_target_properties(tq_${folder} PROPERTIES EXPORT_NAME ${folder})
    list(APPEND tq_installed tq_${folder})
  endif()
endforeach()
install(TARGETS ${tq_installed} EXPORT TurboQuantTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT TurboQuantTargets NAMESPACE TurboQuant:: DESTINATION ${tq_package_dir})

configure_package_config_file(cmake/TurboQuantConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TurboQuantConfig.cmake INSTALL_DESTINATION ${tq_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TurboQuantConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TurboQuantConfig.cmake
  ${PROJECT_BINARY_DIR}/TurboQuantConfigVersion.cmake DESTINATION ${tq_package_dir})
if(TARGET tq)
  install(TARGETS tq RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
