#include "huggingface/model_directory.hpp"
