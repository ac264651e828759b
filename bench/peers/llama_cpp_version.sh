# Which llama.cpp is the peer (sourced).
llama_cpp_python=0.3.36
llama_cpp_version="llama-cpp-python 0.3.36 (llama.cpp 0c1e57098)"
