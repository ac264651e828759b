# tq_embed(OUTPUT symbol file...): a .cc with one std::string_view per file, so that the binary
# stands alone. Each symbol is declared in report_assets.h.
function(tq_embed output)
  set(text "#include \"runtime/evaluate/report_assets.h\"\n\nnamespace tq {\n")
  while(ARGN)
    list(POP_FRONT ARGN symbol file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} contents)
    string(APPEND text "const std::string_view ${symbol} = R\"tqasset(${contents})tqasset\";\n")
  endwhile()
  string(APPEND text "}  // namespace tq\n")
  file(CONFIGURE OUTPUT ${output} CONTENT "@text@" @ONLY)
endfunction()
