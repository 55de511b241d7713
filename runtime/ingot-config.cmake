# find_package(ingot): the targets ingot::ingot (static) and ingot::ingot_shared.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/ingot-targets.cmake)
