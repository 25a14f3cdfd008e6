# Tercet for find_package: the target Tercet::tercet is the shared library, Tercet::static the static one.
get_filename_component(_tercet_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

foreach(_tercet_kind SHARED STATIC)
  if(_tercet_kind STREQUAL SHARED)
    set(_tercet_target Tercet::tercet)
    set(_tercet_file "${CMAKE_SHARED_LIBRARY_PREFIX}tercet${CMAKE_SHARED_LIBRARY_SUFFIX}")
  else()
    set(_tercet_target Tercet::static)
    set(_tercet_file "${CMAKE_STATIC_LIBRARY_PREFIX}tercet${CMAKE_STATIC_LIBRARY_SUFFIX}")
  endif()
  set(_tercet_path "${_tercet_prefix}/lib/${_tercet_file}")
  if(EXISTS "${_tercet_path}" AND NOT TARGET ${_tercet_target})
    add_library(${_tercet_target} ${_tercet_kind} IMPORTED)
    set_target_properties(${_tercet_target} PROPERTIES
      IMPORTED_LOCATION "${_tercet_path}"
      INTERFACE_INCLUDE_DIRECTORIES "${_tercet_prefix}/include")
  endif()
endforeach()

if(TARGET Tercet::tercet)
  # The library has no version in its name.
  set_property(TARGET Tercet::tercet PROPERTY IMPORTED_NO_SONAME TRUE)
endif()
if(TARGET Tercet::static AND UNIX)
  set_property(TARGET Tercet::static PROPERTY INTERFACE_LINK_LIBRARIES "m;pthread;dl")
endif()
if(NOT TARGET Tercet::tercet)
  set(Tercet_FOUND FALSE)
  set(Tercet_NOT_FOUND_MESSAGE "no library in ${_tercet_prefix}/lib")
endif()
