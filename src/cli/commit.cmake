# Writes OUTPUT, which says from which commit of SOURCE this program is built, at every build; unchanged where it says so
# already, so that nothing is compiled again.
set(commit unknown)
set(archived "$Format:%H$")  # git archive puts its commit in the place of this
if(archived MATCHES "^[0-9a-f]+$")
  string(SUBSTRING ${archived} 0 12 commit)
endif()
set(ENV{GIT_OPTIONAL_LOCKS} 0)  # another git may be at work
set(failed TRUE)
if(EXISTS ${SOURCE}/.git)  # git would take a repository around SOURCE, too
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE hash RESULT_VARIABLE failed
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT failed)
  set(commit ${hash})
  execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit "+changes")
  endif()
endif()
set(text "#include \"cli/commit.hpp\"\n\nchar const* offstage::cli::commit() noexcept {\n  return \"${commit}\";\n}\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
