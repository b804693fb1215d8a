# An option is what -D says, else the environment variable of the same name, else the default.
# Values from the environment are not cached: a kept build folder remembers none of them.
function(dlkern_option name default)
  if(DEFINED CACHE{${name}})
    return()
  endif()
  if(DEFINED ENV{${name}})
    set(${name} "$ENV{${name}}" PARENT_SCOPE)
  else()
    set(${name} "${default}" PARENT_SCOPE)
  endif()
endfunction()
